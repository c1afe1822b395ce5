"""Expansion: which signatures a spec stands for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ssd_aot.axes import AxisValue
from ssd_aot.errors import SpecError
from ssd_aot.geometry import ModelGeometry
from ssd_aot.matrix import Exclusion, Section
from ssd_aot.signatures import Signature, expand
from ssd_aot.spec import Spec

MODEL = ModelGeometry("m", nheads=128, headdim=64, dstate=128, ngroups=8)


def section(*models: ModelGeometry, **axes: tuple[AxisValue, ...]) -> Section:
    return Section(models or (MODEL,), axes=tuple(axes.items()))


def expanded(*models: ModelGeometry, **axes: tuple[AxisValue, ...]) -> tuple[Signature, ...]:
    return expand(Spec((section(*models, **axes),)))


def test_a_signature_is_one_point_of_every_axis_for_every_model_and_tp() -> None:
    models = (replace(MODEL, tp=(1, 2)), replace(MODEL, name="n"))

    signatures = expanded(*models, dtype=("bf16", "fp16"), state_dtype=("bf16", "fp32"))

    # 3 model-tp pairs × 2 dtypes × 2 state dtypes × 2 HAS_INITSTATES × 2 num_seqs.
    assert len(signatures) == 48
    assert len({signature.id for signature in signatures}) == 48


def test_signatures_come_in_one_order() -> None:
    ids = [signature.id for signature in expanded(dtype=("bf16", "fp16"))]

    assert ids == sorted(ids)


# heads, groups, tp; heads and groups a rank.
RANKS = {
    "tp 1 keeps all": (128, 8, 1, (128, 8)),
    "groups 8, TP 4: 2 groups a rank": (128, 8, 4, (32, 2)),
    "groups 8, TP 8: 1 group a rank": (128, 8, 8, (16, 1)),
    "groups 8, TP 32: 1 group a rank, replicated": (128, 8, 32, (4, 1)),
    "1 group is replicated": (48, 1, 8, (6, 1)),
    "groups 2, TP 4: replicated": (112, 2, 4, (28, 1)),
}


@pytest.mark.parametrize("case", RANKS)
def test_tensor_parallelism_divides_heads_and_groups(case: str) -> None:
    nheads, ngroups, tp, wanted = RANKS[case]

    signatures = expanded(replace(MODEL, nheads=nheads, ngroups=ngroups, tp=(tp,)))

    assert {(s.nheads, s.ngroups) for s in signatures} == {wanted}


# heads, groups, tp; the sizes offered.
REFUSED_RANKS = {
    "groups 3, heads 15, TP 5": (15, 3, 5, "use tp 1"),
    "heads that tp does not divide": (24, 1, 16, "use tp 1, 2, 4, 8"),
    "groups 8, TP 12": (96, 8, 12, "use tp 1, 2, 4, 8"),
}


@pytest.mark.parametrize("case", REFUSED_RANKS)
def test_a_tensor_parallel_size_that_does_not_divide_is_refused_with_the_rule(case: str) -> None:
    nheads, ngroups, tp, mend = REFUSED_RANKS[case]

    with pytest.raises(SpecError) as caught:
        expanded(replace(MODEL, nheads=nheads, ngroups=ngroups, tp=(tp,)))

    assert caught.value.found == f"nheads {nheads}, ngroups {ngroups}, tp {tp}"
    assert caught.value.wanted == "tp divides nheads, and tp divides ngroups or ngroups divides tp"
    assert caught.value.mend == mend


@pytest.mark.parametrize("dstate", [16, 64, 96, 128, 256])
@pytest.mark.parametrize("chunk_size", [64, 128, 256])
def test_every_state_dim_goes_with_every_chunk_size(dstate: int, chunk_size: int) -> None:
    signatures = expanded(replace(MODEL, dstate=dstate, chunk_size=(chunk_size,)))

    assert {(s.dstate, s.chunk_size) for s in signatures} == {(dstate, chunk_size)}


def test_one_sequence_with_initial_states_is_a_signature_of_its_own() -> None:
    found = {(s.num_seqs, s.has_initstates) for s in expanded()}

    assert ((1, 1), True) in found
    assert found == {((1, 1), False), ((1, 1), True), ((2, 1024), False), ((2, 1024), True)}


def test_the_four_dtypes_are_independent() -> None:
    (signature, *_) = expanded(
        dtype=("fp16",), dt_dtype=("fp32",), param_dtype=("bf16",), state_dtype=("bf16",)
    )

    assert signature.id.split("/")[2] == "fp16-fp32-bf16-bf16"


def test_same_follows_the_input_dtype() -> None:
    found = {(s.dtype, s.dt_dtype, s.param_dtype) for s in expanded(dtype=("bf16", "fp16"))}

    assert found == {("bf16", "bf16", "bf16"), ("fp16", "fp16", "fp16")}


def test_two_spellings_of_one_dtype_are_one_signature() -> None:
    assert expanded(dt_dtype=("same", "bf16")) == expanded()


def test_the_number_of_batched_tokens_changes_no_signature_but_its_limit() -> None:
    few, many = (
        expand(Spec((replace(section(), max_num_batched_tokens=tokens),)))
        for tokens in (8192, 65536)
    )

    assert [s.id for s in few] == [s.id for s in many]
    assert [replace(s, max_num_batched_tokens=0) for s in few] == [
        replace(s, max_num_batched_tokens=0) for s in many
    ]


def test_seq_idx_goes_with_the_batch_call_and_intermediate_states_with_the_packed_one() -> None:
    signatures = expanded(
        IS_CONT_BATCHED=(False, True), seq_idx=(False, True), intermediate_states=(False, True)
    )

    assert {(s.is_cont_batched, s.seq_idx, s.intermediate_states) for s in signatures} == {
        (False, False, False),
        (False, True, False),
        (True, False, False),
        (True, False, True),
    }


# Axes; the value that is possible nowhere.
IMPOSSIBLE: dict[str, tuple[dict[str, tuple[AxisValue, ...]], str]] = {
    "seq_idx without a batch call": ({"seq_idx": (True,)}, "seq_idx true"),
    "seq_idx asked for beside false": ({"seq_idx": (False, True)}, "seq_idx true"),
    "intermediate states without a packed call": (
        {"IS_CONT_BATCHED": (False,), "intermediate_states": (True,)},
        "intermediate_states true",
    ),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_a_value_that_is_possible_nowhere_is_refused(case: str) -> None:
    axes, value = IMPOSSIBLE[case]

    with pytest.raises(SpecError, match=f"{value} is possible nowhere"):
        expanded(**axes)


# What an exclusion matches; how many of 32 signatures it leaves.
EXCLUSIONS: dict[str, tuple[dict[str, tuple[AxisValue, ...]], int]] = {
    "an axis value": ({"state_dtype": ("fp16",)}, 16),
    "an axis value at one tp": ({"state_dtype": ("fp16",), "tp": (8,)}, 24),
    "one of several values": ({"tp": (1, 8), "num_seqs": ("many",)}, 16),
    "a model": ({"model": ("m",)}, 16),
    "a chunk size": ({"chunk_size": (256,)}, 16),
}


@pytest.mark.parametrize("case", EXCLUSIONS)
def test_an_exclusion_leaves_out_what_it_partly_describes(case: str) -> None:
    matches, left = EXCLUSIONS[case]
    model = replace(MODEL, tp=(1, 8))
    other = replace(model, name="n", chunk_size=(256,))
    whole = section(model, other, state_dtype=("fp16", "fp32"))
    assert len(expand(Spec((whole,)))) == 32

    kept = expand(Spec((replace(whole, exclude=(Exclusion(tuple(matches.items())),)),)))

    assert len(kept) == left


def test_exclusions_that_leave_nothing_are_refused() -> None:
    whole = replace(section(), exclude=(Exclusion((("model", ("m",)),)),))

    with pytest.raises(SpecError, match="nothing remains"):
        expand(Spec((whole,)))


def test_a_signature_survives_its_json_form() -> None:
    for signature in expanded():
        assert Signature.from_json(signature.to_json()) == signature
