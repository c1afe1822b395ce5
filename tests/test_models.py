"""A Hugging Face config.json becomes a spec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ssd_aot.errors import SpecError
from ssd_aot.models import BY_HAND, MODEL_TYPES, spec_from_config, spec_from_file
from ssd_aot.spec import Spec, load_spec

BAMBA = {
    "mamba_n_heads": 128, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1,
    "mamba_d_conv": 4, "mamba_chunk_size": 256, "mamba_expand": 2, "hidden_size": 4096,
}  # fmt: skip

# Config; heads, head dim, state dim, groups, convolution, chunk size, tp.
CONFIGS: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
    "nemotron_h": (
        {"model_type": "nemotron_h", "mamba_num_heads": 64, "mamba_head_dim": 64,
         "ssm_state_size": 128, "n_groups": 8, "conv_kernel": 4, "chunk_size": 128,
         "head_dim": 128, "n_group": 1, "expand": 2, "hidden_size": 2688},
        (64, 64, 128, 8, 4, 128, (1, 2, 4, 8)),
    ),
    "nemotron_h with its older names": (
        {"model_type": "nemotron_h", "mamba_num_heads": 64, "mamba_head_dim": 80,
         "ssm_state_size": 128, "mamba_n_groups": 8, "mamba_d_conv": 4, "mamba_chunk_size": 128},
        (64, 80, 128, 8, 4, 128, (1, 2, 4, 8)),
    ),
    "bamba": ({"model_type": "bamba", **BAMBA}, (128, 64, 128, 1, 4, 256, (1, 2, 4, 8))),
    "granitemoehybrid with an auto head dim": (
        {"model_type": "granitemoehybrid", **BAMBA, "mamba_d_head": "auto", "mamba_n_heads": 48,
         "hidden_size": 1536},
        (48, 64, 128, 1, 4, 256, (1, 2, 4, 8)),
    ),
    "falcon_h1 with an auto head dim": (
        {"model_type": "falcon_h1", **BAMBA, "mamba_d_head": "auto", "mamba_n_heads": 24,
         "mamba_d_ssm": 3072, "mamba_d_state": 256},
        (24, 128, 256, 1, 4, 256, (1, 2, 4, 8)),
    ),
    "zamba2": (
        {"model_type": "zamba2", "n_mamba_heads": 112, "mamba_d_state": 64, "mamba_ngroups": 2,
         "mamba_d_conv": 4, "chunk_size": 256, "mamba_expand": 2, "hidden_size": 3584},
        (112, 64, 64, 2, 4, 256, (1, 2, 4, 8)),
    ),
    "mamba2": (
        {"model_type": "mamba2", "num_heads": 12, "head_dim": 64, "state_size": 64,
         "n_groups": 2, "conv_kernel": 4, "chunk_size": 256},
        (12, 64, 64, 2, 4, 256, (1, 2, 4)),
    ),
}  # fmt: skip


def loaded(config: dict[str, Any], folder: Path) -> Spec:
    path = folder / "spec.yaml"
    path.write_text(spec_from_config(config, "model"), encoding="utf-8")
    return load_spec([path])


@pytest.mark.parametrize("case", CONFIGS)
def test_a_config_becomes_a_spec_with_its_geometry(case: str, tmp_path: Path) -> None:
    config, wanted = CONFIGS[case]

    (model,) = loaded(config, tmp_path).models

    assert model.name == "model"
    assert (*model.shape.values(), *model.chunk_size, model.tp) == wanted


def test_every_model_type_is_shown_above() -> None:
    assert {config["model_type"] for config, _ in CONFIGS.values()} == set(MODEL_TYPES)


# Config fields; the spec's dtype and state_dtype.
DTYPES: dict[str, tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]] = {
    "nothing said": ({}, ("bf16",), ("bf16", "fp32")),
    "dtype": ({"dtype": "float16"}, ("fp16",), ("fp16", "fp32")),
    "the older torch_dtype": ({"torch_dtype": "bfloat16"}, ("bf16",), ("bf16", "fp32")),
    "a state cache dtype": ({"mamba_ssm_cache_dtype": "float32"}, ("bf16",), ("fp32",)),
    "float32 throughout": ({"torch_dtype": "float32"}, ("fp32",), ("fp32",)),
}


@pytest.mark.parametrize("case", DTYPES)
def test_dtypes_come_from_the_config(case: str, tmp_path: Path) -> None:
    fields, dtype, state_dtype = DTYPES[case]

    axes = dict(loaded({"model_type": "bamba", **BAMBA, **fields}, tmp_path).sections[0].axes)

    assert (axes["dtype"], axes["state_dtype"]) == (dtype, state_dtype)


WITHOUT_STATE = {name: value for name, value in BAMBA.items() if name != "mamba_d_state"}

# Config; field; found; wanted; mend.
WRONG: dict[str, tuple[dict[str, Any], str, str, str | None, str]] = {
    "no model type": (BAMBA, "model_type", "", None, "write a spec with its geometry by hand"),
    "misspelt model type": (
        {"model_type": "granite_moe_hybrid"}, "model_type", "granite_moe_hybrid",
        "one of bamba, falcon_h1, granitemoehybrid, mamba2, nemotron_h, zamba2",
        "is it granitemoehybrid? Otherwise write a spec with its geometry by hand",
    ),
    "attention only": (
        {"model_type": "llama"}, "model_type", "llama", None,
        "write a spec with its geometry by hand",
    ),
    "missing field": (
        {"model_type": "bamba", **WITHOUT_STATE}, "mamba_d_state", "", "mamba_d_state", "",
    ),
    "misspelt field": (
        {"model_type": "bamba", **WITHOUT_STATE, "mamba_dstate": 128},
        "mamba_d_state", "", "mamba_d_state", "the config has 'mamba_dstate'",
    ),
    "a size that is no number": (
        {"model_type": "bamba", **BAMBA, "mamba_n_heads": "128"},
        "mamba_n_heads", "'128'", "a whole number", "",
    ),
    "a head dim that cannot be worked out": (
        {"model_type": "bamba", **BAMBA, "mamba_d_head": "auto", "mamba_n_heads": 3},
        "mamba_d_head", "8192 channels, 3 heads", "channels to be a multiple of heads", "",
    ),
    "a chunk size that is no power of two": (
        {"model_type": "bamba", **BAMBA, "mamba_chunk_size": 40},
        "chunk_size", "40", "one of 64, 128, 256", "write 64",
    ),
    "a dtype without kernels": (
        {"model_type": "bamba", **BAMBA, "dtype": "float8_e4m3fn"},
        "dtype", "float8_e4m3fn", "one of bfloat16, float16, float32",
        "put the dtype that activations have when it is served",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_config_that_cannot_be_used_is_refused_with_its_field(case: str) -> None:
    config, field, found, wanted, mend = WRONG[case]

    with pytest.raises(SpecError) as caught:
        spec_from_config(config, "model")

    error = caught.value
    assert (error.where, error.found, error.mend) == (field, found, mend)
    assert wanted is None or error.wanted == wanted


@pytest.mark.parametrize("case", WRONG)
def test_a_config_file_that_cannot_be_used_is_refused_with_file_field_and_mend(
    case: str, tmp_path: Path
) -> None:
    config, field, *_, mend = WRONG[case]
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))

    with pytest.raises(SpecError) as caught:
        spec_from_file(file, "model")

    assert caught.value.where == f"{file}: {field}"
    assert caught.value.mend == (mend or "correct the config, or " + BY_HAND)


def test_a_folder_whose_name_no_model_can_have_asks_for_a_name(tmp_path: Path) -> None:
    file = tmp_path / "some model" / "config.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"model_type": "bamba", **BAMBA}))

    with pytest.raises(SpecError) as caught:
        spec_from_file(file)

    assert (caught.value.where, caught.value.found) == ("--name", "some model")
    assert "--name" in caught.value.mend


def test_a_model_name_that_no_id_can_hold_is_refused() -> None:
    with pytest.raises(SpecError, match="not a model name"):
        spec_from_config({"model_type": "bamba", **BAMBA}, "ibm/bamba")
