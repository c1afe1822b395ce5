"""Models as Hugging Face describes them: a config.json to a spec."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ssd_aot.bundle.json_readers import DEEPEST, NotJson, is_shallow, parse_json
from ssd_aot.errors import SpecError
from ssd_aot.geometry import ModelGeometry


@dataclass(frozen=True)
class ConfigFields:
    """Where a model type keeps each number: field names, the current one first.

    `inner_size` and `expand` are what a head dim of "auto", or a missing one, follows from.
    """

    nheads: tuple[str, ...]
    headdim: tuple[str, ...]
    dstate: tuple[str, ...]
    ngroups: tuple[str, ...]
    conv_kernel: tuple[str, ...]
    chunk_size: tuple[str, ...]
    inner_size: tuple[str, ...] = ()
    expand: tuple[str, ...] = ("mamba_expand",)
    headdim_follows: bool = False


_BAMBA = ConfigFields(
    nheads=("mamba_n_heads",),
    headdim=("mamba_d_head",),
    dstate=("mamba_d_state",),
    ngroups=("mamba_n_groups",),
    conv_kernel=("mamba_d_conv",),
    chunk_size=("mamba_chunk_size",),
    headdim_follows=True,
)

# Field names: `src/transformers/models/<model type>/configuration_<model type>.py`; the second
# names of nemotron_h are those that file still renames, those of zamba2 are of Zyphra's first
# release.
MODEL_TYPES: Mapping[str, ConfigFields] = {
    "bamba": _BAMBA,
    "falcon_h1": replace(_BAMBA, inner_size=("mamba_d_ssm",)),
    "granitemoehybrid": _BAMBA,
    "mamba2": ConfigFields(
        nheads=("num_heads",),
        headdim=("head_dim",),
        dstate=("state_size",),
        ngroups=("n_groups",),
        conv_kernel=("conv_kernel",),
        chunk_size=("chunk_size",),
        expand=("expand",),
    ),
    "nemotron_h": ConfigFields(
        nheads=("mamba_num_heads",),
        headdim=("mamba_head_dim",),
        dstate=("ssm_state_size",),
        ngroups=("n_groups", "mamba_n_groups"),
        conv_kernel=("conv_kernel", "mamba_d_conv"),
        chunk_size=("chunk_size", "mamba_chunk_size"),
        expand=("expand", "mamba_expand"),
    ),
    "zamba2": ConfigFields(
        nheads=("n_mamba_heads",),
        headdim=("mamba_headdim",),
        dstate=("mamba_d_state", "state_size"),
        ngroups=("mamba_ngroups",),
        conv_kernel=("mamba_d_conv", "conv_dimension"),
        chunk_size=("chunk_size",),
        expand=("mamba_expand", "expansion_factor"),
        headdim_follows=True,
    ),
}

BY_HAND = "write a spec with its geometry by hand"

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def spec_from_file(path: Path, name: str | None = None) -> str:
    """A spec as YAML text for the model of the config.json at `path`, named after its folder where
    no name is given. Raises SpecError with file, field and mend for anything that is none."""
    try:
        return spec_from_config(_read_config(path), name or path.resolve().parent.name)
    except SpecError as error:
        if error.where == "models":
            error.where, error.mend = "--name", f"{error.mend} by --name"
        else:
            error.where = f"{path}: {error.where}" if error.where else str(path)
        error.mend = error.mend or f"correct the config, or {BY_HAND}"
        raise


def _read_config(path: Path) -> Mapping[str, Any]:
    try:
        values = parse_json(path.read_bytes())
        problem = "" if isinstance(values, dict) else type(values).__name__
    except OSError as error:
        problem = error.strerror or str(error)
    except NotJson as error:
        problem = f"line {error.line}: {error.what}" if error.line else error.what
    if not problem and not is_shallow(values):
        problem = f"nested more than {DEEPEST} levels deep"
    if problem:
        raise SpecError("the model config is not a JSON object", found=problem,
                        wanted="a config.json", mend="pass the file of the model")  # fmt: skip
    return values  # type: ignore[no-any-return]


def geometry_from_config(config: Mapping[str, Any], name: str) -> ModelGeometry:
    """The geometry that a config.json states, with the usual tensor-parallel sizes it allows.

    Raises SpecError for an unsupported model type, a missing or malformed field, or a geometry
    outside the limits.
    """
    fields = _fields_of(config)
    geometry = ModelGeometry(
        name=name,
        nheads=_number(config, fields.nheads),
        headdim=_headdim(config, fields),
        dstate=_number(config, fields.dstate),
        ngroups=_number(config, fields.ngroups),
        conv_kernel=_number(config, fields.conv_kernel),
        chunk_size=(_number(config, fields.chunk_size),),
    )
    geometry.check()
    return replace(geometry, tp=geometry.divisions())


def spec_from_config(config: Mapping[str, Any], name: str) -> str:
    """A spec as YAML text for the model of a config.json. Raises as `geometry_from_config`."""
    geometry = geometry_from_config(config, name)
    dtype = _dtype(config, ("dtype", "torch_dtype")) or "bf16"
    state = _dtype(config, ("mamba_ssm_cache_dtype",))
    states, why = [state], "mamba_ssm_cache_dtype of the config"
    if state is None:
        states = list(dict.fromkeys(("fp32", dtype)))
        why = "the config does not say; engines keep it in fp32 or in the model's dtype"
    lines = [
        f"# From a config.json of model type {config['model_type']}.",
        "version: 1",
        "models:",
        f'  "{name}":',
        *(f"    {field}: {value}" for field, value in geometry.shape.items()),
        f"    chunk_size: {geometry.chunk_size[0]}",
        f"    tp: [{', '.join(map(str, geometry.tp))}]",
        "matrix:",
        f"  dtype: [{dtype}]",
        f"  state_dtype: [{', '.join(map(str, states))}]  # {why}",
        "  HAS_INITSTATES: [false, true]",
        "  num_seqs: [1, many]",
    ]
    return "\n".join(lines) + "\n"


def _fields_of(config: Mapping[str, Any]) -> ConfigFields:
    kind = config.get("model_type")
    if isinstance(kind, str) and kind in MODEL_TYPES:
        return MODEL_TYPES[kind]
    near = difflib.get_close_matches(str(kind), MODEL_TYPES, n=1, cutoff=0.8)
    raise SpecError(
        "no model type that has SSD layers" if kind else "the config has no model_type",
        where="model_type",
        found=str(kind) if kind else "",
        wanted=f"one of {', '.join(MODEL_TYPES)}",
        mend=f"is it {near[0]}? Otherwise {BY_HAND}" if near else BY_HAND,
    )


def _headdim(config: Mapping[str, Any], fields: ConfigFields) -> int:
    """The stated head dim, or (inner size, else expand × hidden size) / heads."""
    stated = next((config[name] for name in fields.headdim if name in config), "auto")
    if stated not in ("auto", None) or not fields.headdim_follows:
        return _number(config, fields.headdim)
    nheads = _number(config, fields.nheads)
    if any(config.get(name) is not None for name in fields.inner_size):
        inner = _number(config, fields.inner_size)
    else:
        inner = _number(config, fields.expand) * _number(config, ("hidden_size",))
    if inner % nheads:
        raise SpecError(
            "the head dim cannot be worked out",
            where=fields.headdim[0],
            found=f"{inner} channels, {nheads} heads",
            wanted="channels to be a multiple of heads",
        )
    return inner // nheads


def _number(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    name = next((name for name in names if name in config), None)
    if name is None:
        near = difflib.get_close_matches(names[0], config, n=1, cutoff=0.8)
        raise SpecError(
            f"field '{names[0]}' is missing",
            where=names[0],
            wanted=" or ".join(names),
            mend=f"the config has '{near[0]}'" if near else "",
        )
    value = config[name]
    # Python's bool is an int, JSON's true is no number. Below one there is no such size.
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SpecError(
            f"'{name}' is not a size", where=name, found=repr(value), wanted="a whole number"
        )
    return value


def _dtype(config: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    name = next((name for name in names if config.get(name) is not None), None)
    if name is None:
        return None
    text = str(config[name]).removeprefix("torch.")
    if text not in _DTYPES:
        raise SpecError(
            f"'{name}' is a dtype that no kernel here takes",
            where=name,
            found=text,
            wanted=f"one of {', '.join(_DTYPES)}",
            mend="put the dtype that activations have when it is served",
        )
    return _DTYPES[text]
