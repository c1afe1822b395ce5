"""The public operations on meta tensors: what they hand on, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from recorder import Recorder
from torch import Tensor

from ssd_aot import ops
from ssd_aot.errors import UsageError
from ssd_aot.layouts import Counts, ScanLayout
from ssd_aot.ops.execution import executing

TOKENS, HEADS, HEADDIM, GROUPS, STATES, SEQUENCES = 96, 4, 32, 2, 64, 3


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def index(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
    return meta(*shape, dtype=dtype)


def states(count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return meta(count, HEADS, HEADDIM, STATES, dtype=dtype)


def packed(**changed: Any) -> dict[str, Any]:
    """The arguments of a packed call as vLLM makes it."""
    return {
        "x": meta(TOKENS, HEADS, HEADDIM),
        "dt": meta(TOKENS, HEADS),
        "A": meta(HEADS, dtype=torch.float32),
        "B": meta(TOKENS, GROUPS, STATES),
        "C": meta(TOKENS, GROUPS, STATES),
        "chunk_size": 128,
        "cu_seqlens": index(SEQUENCES + 1),
        "cu_chunk_seqlens": index(5),
        "last_chunk_indices": index(SEQUENCES),
        "seq_idx": index(4),
        "out": meta(TOKENS, HEADS, HEADDIM),
        "D": meta(HEADS),
        "dt_bias": meta(HEADS),
        "initial_states": states(SEQUENCES),
        "dt_softplus": True,
        "final_states_out": states(10),
        "final_state_indices": index(SEQUENCES),
        **changed,
    }


def run(operation: Callable[..., Any] = ops.mamba_chunk_scan_combined_varlen, **given: Any) -> Any:
    with executing(Recorder()):
        return operation(**given)


def recorded(**given: Any) -> tuple[ScanLayout, Counts]:
    with executing(recorder := Recorder()):
        ops.mamba_chunk_scan_combined_varlen(**given)
    return recorder.layouts[0], recorder.counts[0]


def test_a_call_becomes_a_layout_and_counts() -> None:
    layout, counts = recorded(**packed())

    assert (layout.nheads, layout.headdim, layout.dstate, layout.ngroups) == (4, 32, 64, 2)
    assert layout.packed
    assert layout.aligned
    assert layout.d_form == 1
    assert dict(layout.types)["final_states"] == "fp32"
    assert counts == Counts(TOKENS, SEQUENCES, SEQUENCES)


def test_what_is_returned_follows_what_was_asked_for() -> None:
    no_cache: dict[str, Any] = {"final_states_out": None, "final_state_indices": None}
    half = torch.float16

    assert run(**packed()) is None
    final = run(**packed(**no_cache, initial_states=None))
    assert (final.shape[0], final.dtype) == (SEQUENCES, torch.bfloat16)
    final = run(**packed(**no_cache, initial_states=None, state_dtype=half))
    assert final.dtype == half
    each = run(**packed(**no_cache, state_dtype=torch.float32, return_intermediate_states=True))
    assert each.shape[0] == 4


def test_int64_indices_and_strided_inputs_are_taken() -> None:
    long = {n: index(SEQUENCES, dtype=torch.int64) for n in ("final_state_indices",)}
    strided = meta(TOKENS, HEADS, HEADDIM * 2)[..., ::2]

    layout, _ = recorded(**packed(**long, x=strided, cu_seqlens=index(4, dtype=torch.int64)))

    assert dict(layout.strides)["spans_stride"] == 2
    assert dict(layout.strides)["x_head"] == HEADDIM


def test_views_that_start_off_sixteen_bytes_are_seen() -> None:
    row = meta(TOKENS, HEADS * HEADDIM + 1)[:, 1:].view(TOKENS, HEADS, HEADDIM)

    assert not recorded(**packed(x=row))[0].aligned


def test_no_sequences_launch_nothing() -> None:
    empty = packed(
        x=meta(0, HEADS, HEADDIM), dt=meta(0, HEADS), B=meta(0, GROUPS, STATES),
        C=meta(0, GROUPS, STATES), out=meta(0, HEADS, HEADDIM), cu_seqlens=index(1),
        initial_states=states(0), final_state_indices=index(0),
    )  # fmt: skip
    with executing(recorder := Recorder()):
        ops.mamba_chunk_scan_combined_varlen(**empty)

    assert not recorder.layouts


# Changed argument(s); the field, found and wanted that the error names.
REFUSED: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "chunk 40": ({"chunk_size": 40}, "chunk_size", "40", "power of two"),
    "chunk 50": ({"chunk_size": 50}, "chunk_size", "50", "power of two"),
    "x without heads": ({"x": meta(TOKENS, HEADS)}, "x", "(96, 4)", "headdim"),
    "dt of other heads": ({"dt": meta(TOKENS, 5)}, "dt", "(96, 5)", "(96, 4)"),
    "B of other tokens": ({"C": meta(95, GROUPS, STATES)}, "C", "(95, 2, 64)", "(96, 2, 64)"),
    "D of other heads": ({"D": meta(5)}, "D", "(5,)", "(4,) or (4, 32)"),
    "groups that do not divide": (
        {"B": meta(TOKENS, 3, STATES), "C": meta(TOKENS, 3, STATES)},
        "B", "3 groups, 4 heads", "nheads % ngroups == 0",
    ),
    "states of other heads": (
        {"initial_states": meta(3, 5, HEADDIM, STATES, dtype=torch.float32)},
        "initial_states", "(3, 5, 32, 64)", "(3, 4, 32, 64)",
    ),
    "a cache of another layer": (
        {"final_states_out": meta(10, HEADS, HEADDIM, 32, dtype=torch.float32)},
        "final_states_out", "(10, 4, 32, 32)", "64",
    ),
    "slots of other sequences": (
        {"final_state_indices": index(2)}, "final_slots", "(2,)", "(3,)",
    ),
    "B of another dtype": (
        {"B": meta(TOKENS, GROUPS, STATES, dtype=torch.float16)},
        "B", "torch.float16", "torch.bfloat16",
    ),
    "A in bf16": ({"A": meta(HEADS)}, "A", "torch.bfloat16", "torch.float32"),
    "x in float64": (
        {
            "x": meta(TOKENS, HEADS, HEADDIM, dtype=torch.float64),
            "B": meta(TOKENS, GROUPS, STATES, dtype=torch.float64),
            "C": meta(TOKENS, GROUPS, STATES, dtype=torch.float64),
            "out": meta(TOKENS, HEADS, HEADDIM, dtype=torch.float64),
        },
        "x", "torch.float64", "bfloat16, float16 or float32",
    ),
    "states of two dtypes": (
        {"initial_states": states(SEQUENCES, torch.float16)},
        "initial_states", "torch.float16", "torch.float32",
    ),
    "a gradient": (
        {"x": meta(TOKENS, HEADS, HEADDIM).requires_grad_()},
        "x", "requires_grad=True", "no gradient",
    ),
    "another device": ({"D": torch.empty(HEADS)}, "D", "cpu", "meta"),
    "a negative limit": ({"dt_limit": (-0.1, 1.0)}, "dt_limit", "(-0.1, 1.0)", "0 <= dt_limit[0]"),
    "limits the wrong way": ({"dt_limit": (1.0, 0.1)}, "dt_limit", "(1.0, 0.1)", "dt_limit[1]"),
    "a strided output": (
        {"out": meta(TOKENS, HEADS, HEADDIM * 2)[..., ::2]}, "out", "2", "stride 1",
    ),
    "a cache without slots": (
        {"final_state_indices": None}, "final_state_indices", "one of the two", "both or neither",
    ),
    "both kinds of states": (
        {"return_intermediate_states": True}, "return_intermediate_states", "final_states_out",
        "one of them",
    ),
    "a head dim beyond the kernels": (
        {
            "x": meta(TOKENS, HEADS, 256), "out": meta(TOKENS, HEADS, 256),
            "initial_states": None,
            "final_states_out": meta(10, HEADS, 256, STATES, dtype=torch.float32),
        },
        "headdim", "256", "16 to 128",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_kernels_do_not_take_is_refused_with_its_name_and_mend(case: str) -> None:
    changed, where, found, wanted = REFUSED[case]

    with pytest.raises(UsageError) as caught:
        run(**packed(**changed))

    error = caught.value
    assert error.where == where
    assert found in error.found
    assert wanted in error.wanted
    assert error.mend


def batch(**changed: Any) -> dict[str, Any]:
    """The arguments of a batch call."""
    return {
        "x": meta(2, TOKENS, HEADS, HEADDIM),
        "dt": meta(2, TOKENS, HEADS),
        "A": meta(HEADS, dtype=torch.float32),
        "B": meta(2, TOKENS, GROUPS, STATES),
        "C": meta(2, TOKENS, GROUPS, STATES),
        "chunk_size": 128,
        **changed,
    }


def test_mamba_ssm_returns_its_output_first() -> None:
    call = ops.mamba_ssm.mamba_chunk_scan_combined

    assert run(call, **batch()).shape == (2, TOKENS, HEADS, HEADDIM)
    out, final = run(call, **batch(return_final_states=True))
    assert (out.shape[0], final.shape[0]) == (2, 2)


def test_tensorrt_llm_writes_into_out_and_returns_states_alone() -> None:
    call, out = ops.tensorrt_llm.mamba_chunk_scan_combined, meta(2, TOKENS, HEADS, HEADDIM)

    assert run(call, **batch(out=out)) is None
    assert run(call, **batch(out=out, return_final_states=True)).shape[0] == 2
    with pytest.raises(UsageError, match="output tensor is missing"):
        run(call, **batch())


def test_varlen_states_want_one_row_of_packed_sequences() -> None:
    call = ops.mamba_ssm.mamba_chunk_scan_combined

    with pytest.raises(UsageError, match="one batch row"):
        run(call, **batch(return_varlen_states=True, cu_seqlens=index(4)))
    with pytest.raises(UsageError, match="one batch row"):
        run(call, **batch(return_varlen_states=True))


def test_a_prepared_layer_without_a_state_cache_says_what_it_wants() -> None:
    a = packed()
    layer = ops.prepare(a["A"], D=a["D"], dt_bias=a["dt_bias"], dt_softplus=True)

    with pytest.raises(UsageError, match="writes final states"):
        layer(a["x"], a["dt"], a["B"], a["C"], a["out"], a["cu_seqlens"], a["initial_states"])
