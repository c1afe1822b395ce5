"""Specs: what they mean, how they merge, and their normalised form."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spec_builders import SMALL, refused, write_spec

from ssd_aot.axes import AXES
from ssd_aot.errors import SpecError
from ssd_aot.geometry import ModelGeometry
from ssd_aot.matrix import Exclusion, Section
from ssd_aot.signatures import expand
from ssd_aot.spec import Spec, load_spec


def test_what_a_spec_leaves_out_takes_its_default(tmp_path: Path) -> None:
    spec = load_spec([write_spec(tmp_path, SMALL)])

    normalised = spec.normalised()
    section = normalised["sections"][0]
    assert (normalised["source"], normalised["targets"], normalised["pin"]) == ("builtin", [], {})
    assert (section["max_num_seqs"], section["max_num_batched_tokens"]) == (1024, 8192)
    assert section["models"]["small"] == {
        "nheads": 32, "headdim": 64, "dstate": 128, "ngroups": 8, "conv_kernel": 4,
        "tp": [1], "chunk_size": [128],
    }  # fmt: skip
    assert section["matrix"] == {
        "dtype": ["bf16"], "dt_dtype": ["same"], "param_dtype": ["same"], "state_dtype": ["fp32"],
        "HAS_INITSTATES": [False, True], "IS_CONT_BATCHED": [True], "num_seqs": ["1", "many"],
        "D": ["head"], "z": [False], "dt_bias": [True], "dt_softplus": [True],
        "seq_idx": [False], "intermediate_states": [False], "layout": ["engine"],
        "lengths": ["any"],
    }  # fmt: skip


def test_every_field_is_read(tmp_path: Path) -> None:
    spec = load_spec([write_spec(tmp_path, """\
version: 1
source: vllm
targets: [B200, h200]
max_num_seqs: 64
max_num_batched_tokens: 4096
models:
  small: {nheads: 32, headdim: 64, dstate: 128, ngroups: 8, conv_kernel: 3, tp: [1, 2]}
matrix: {dtype: [fp16, bf16], state_dtype: bf16, chunk_size: 64, num_seqs: 2..8}
exclude:
  - {dtype: fp16, tp: 2}
pin:
  scan: {BLOCK_M: 64, num_warps: 4, maxnreg: null}
""")])  # fmt: skip

    assert (spec.source, spec.targets) == ("vllm", ("b200", "h200"))
    assert spec.pinned("scan") == {"BLOCK_M": 64, "num_warps": 4, "maxnreg": None}
    section = spec.sections[0]
    assert (section.max_num_seqs, section.max_num_batched_tokens) == (64, 4096)
    assert section.models[0].chunk_size == (64,)
    assert dict(section.axes)["dtype"] == ("bf16", "fp16")
    assert dict(section.axes)["num_seqs"] == ("2..8",)
    assert section.exclude[0].to_json() == {"dtype": ["fp16"], "tp": [2]}


def test_a_models_own_chunk_size_goes_before_the_axis(tmp_path: Path) -> None:
    spec = load_spec([write_spec(tmp_path, """\
version: 1
models:
  own: {nheads: 8, headdim: 64, dstate: 64, ngroups: 1, chunk_size: 256}
  axis: {nheads: 8, headdim: 64, dstate: 64, ngroups: 1}
matrix: {chunk_size: [64, 128]}
""")])  # fmt: skip

    assert {model.name: model.chunk_size for model in spec.models} == {
        "own": (256,),
        "axis": (64, 128),
    }


def test_chunk_aligned_lengths_that_no_batch_can_hold_are_refused_with_the_numbers(
    tmp_path: Path,
) -> None:
    path = write_spec(
        tmp_path,
        SMALL + "max_num_batched_tokens: 2048\n"
        "matrix: {lengths: chunk_aligned, chunk_size: 256, num_seqs: 2..64}\n",
    )

    error = refused(path)

    assert error.where == f"{path}:5: matrix.lengths"
    assert error.found == ("num_seqs 64 × chunk_size 256 = 16384 tokens, 32 a sequence available")
    assert error.wanted == "at most max_num_batched_tokens, 2048"
    assert "num_seqs up to 8" in error.mend


def test_many_ends_where_chunk_aligned_sequences_fill_a_batch_and_says_so(tmp_path: Path) -> None:
    spec = load_spec(
        [write_spec(tmp_path, SMALL + "matrix: {lengths: chunk_aligned, num_seqs: many}\n")]
    )

    assert {signature.num_seqs for signature in expand(spec)} == {(2, 64)}
    assert spec.notices == (
        "num_seqs many with chunk-aligned lengths ends at 64, not 1024: 64 × 128 tokens fill "
        "max_num_batched_tokens 8192",
    )


def test_many_is_refused_where_not_even_two_sequences_fit(tmp_path: Path) -> None:
    path = write_spec(
        tmp_path,
        SMALL + "max_num_batched_tokens: 200\nmatrix: {lengths: chunk_aligned, num_seqs: many}\n",
    )

    assert "num_seqs 2 × chunk_size 128 = 256 tokens" in refused(path).found


def test_an_excluded_point_is_not_judged(tmp_path: Path) -> None:
    load_spec([write_spec(tmp_path,
        SMALL + "matrix: {lengths: [any, chunk_aligned], num_seqs: [1, 500]}\n"
        "exclude: [{lengths: chunk_aligned, num_seqs: 500}]\n"
    )])  # fmt: skip


def test_two_files_unite_their_models_each_with_its_own_axes(tmp_path: Path) -> None:
    one = write_spec(tmp_path, SMALL + "matrix: {dtype: fp16}\n", "one.yaml")
    two = write_spec(
        tmp_path, SMALL.replace("small", "other") + "source: vllm\ntargets: [h200]\n", "two.yaml"
    )

    spec = load_spec([one, two])

    assert {(s.model, s.dtype) for s in expand(spec)} == {("small", "fp16"), ("other", "bf16")}
    assert (spec.source, spec.targets) == ("vllm", ("h200",))


def test_the_order_of_files_does_not_matter(tmp_path: Path) -> None:
    one = write_spec(tmp_path, SMALL, "one.yaml")
    two = write_spec(tmp_path, SMALL.replace("small", "other"), "two.yaml")

    assert load_spec([one, two]).digest == load_spec([two, one, one]).digest


# The two files, then the line and field of the second, what it holds and what the first does.
DISAGREEMENTS = {
    "geometry": (
        SMALL, SMALL.replace("headdim: 64", "headdim: 80"),
        "3: models.small", "headdim 80", "headdim 64, as in {first}:3: models.small",
    ),
    "source": (
        SMALL + "source: vllm\n", SMALL + "source: sglang\n",
        "4: source", "sglang", "vllm, as in {first}:4: source",
    ),
    "pin": (
        SMALL + "pin: {scan: {num_warps: 4}}\n", SMALL + "pin: {scan: {num_warps: 8}}\n",
        "4: pin.scan.num_warps", "num_warps 8", "num_warps 4, as in {first}:4: pin.scan.num_warps",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DISAGREEMENTS)
def test_files_that_disagree_are_refused_with_both_places(case: str, tmp_path: Path) -> None:
    first_text, second_text, where, found, wanted = DISAGREEMENTS[case]
    first, second = (
        write_spec(tmp_path, first_text, "first.yaml"),
        write_spec(tmp_path, second_text, "second.yaml"),
    )

    error = refused(first, second)

    assert error.where == f"{second}:{where}"
    assert (error.found, error.wanted) == (found, wanted.replace("{first}", str(first)))


def test_files_that_give_one_signature_two_limits_are_refused(tmp_path: Path) -> None:
    first = write_spec(tmp_path, SMALL, "first.yaml")
    second = write_spec(tmp_path, SMALL + "max_num_batched_tokens: 4096\n", "second.yaml")

    assert "max_num_batched_tokens" in refused(first, second).found


def some_of(name: str) -> st.SearchStrategy[tuple[bool | int | str, ...]]:
    allowed = AXES[name].allowed or ("1", "2", "64", "2..8", "many")
    return st.lists(st.sampled_from(allowed), min_size=1, unique=True).map(tuple)


geometries = st.builds(
    ModelGeometry,
    name=st.sampled_from(["a", "b-1", "c.2"]),
    nheads=st.sampled_from([8, 48, 128]),
    headdim=st.sampled_from([16, 64, 80, 128]),
    dstate=st.sampled_from([16, 64, 256]),
    ngroups=st.sampled_from([1, 2, 8]),
    tp=st.lists(st.sampled_from([1, 2, 4]), min_size=1).map(tuple),
    chunk_size=some_of("chunk_size"),
)
sections = st.builds(
    Section,
    models=st.lists(geometries, min_size=1, max_size=2, unique_by=lambda m: m.name).map(tuple),
    axes=st.fixed_dictionaries(
        {}, optional={name: some_of(name) for name in AXES if name != "chunk_size"}
    ).map(lambda axes: tuple(axes.items())),
    exclude=st.lists(
        st.builds(Exclusion, st.just((("tp", (2, 1)), ("dtype", ("fp16",))))), max_size=1
    ).map(tuple),
    max_num_seqs=st.integers(1, 2048),
    max_num_batched_tokens=st.integers(1, 2**20),
)
specs = st.builds(
    Spec,
    sections=st.lists(sections, min_size=1, max_size=2).map(tuple),
    source=st.sampled_from(["builtin", "vllm"]),
    targets=st.lists(st.sampled_from(["h200", "b200"])).map(tuple),
    pin=st.sampled_from([(), (("scan", (("num_warps", 4), ("BLOCK", 64))),)]),
)


@given(spec=specs)
def test_the_normalised_form_says_all_of_a_spec(spec: Spec) -> None:
    again = Spec.from_normalised(spec.normalised())

    assert again == spec
    assert again.digest == spec.digest


@given(spec=specs, data=st.data())
def test_the_order_of_writing_does_not_change_the_digest(spec: Spec, data: st.DataObject) -> None:
    section = data.draw(st.sampled_from(spec.sections))
    turned = Section(
        models=section.models[::-1],
        axes=tuple((name, values[::-1]) for name, values in section.axes[::-1]),
        exclude=section.exclude[::-1],
        max_num_seqs=section.max_num_seqs,
        max_num_batched_tokens=section.max_num_batched_tokens,
    )

    assert Spec((turned,)).digest == Spec((section,)).digest


def test_a_damaged_normalised_form_is_refused() -> None:
    with pytest.raises(SpecError, match="not a normalised spec"):
        Spec.from_normalised({"version": 1})
