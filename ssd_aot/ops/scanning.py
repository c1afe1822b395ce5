"""One entry behind all signatures: recall a call like this one, or check, describe, execute."""

from __future__ import annotations

import torch
from torch import Tensor

from ssd_aot.errors import UsageError
from ssd_aot.layouts import TENSORS
from ssd_aot.operation import INDEX_POINTERS
from ssd_aot.ops import recall
from ssd_aot.ops.arguments import (
    as_int32,
    check_tensors,
    counts_of,
    layout_of,
    unit_inner_stride,
)
from ssd_aot.ops.execution import Recalling, current_executor, substituted

COPIED_WHEN_STRIDED = frozenset({"x", "A", "B", "C", "D", "z", "dt_bias", "initial_states"})
WRITTEN = ("out", "final_states", "chunk_states")


def scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    seq_idx: Tensor | None,
    spans: Tensor | None,
    last_chunks: Tensor | None,
    out: Tensor,
    initial_states: Tensor | None,
    final_states: Tensor | None,
    final_slots: Tensor | None,
    chunk_states: Tensor | None,
    chunk_size: int,
    dt_softplus: bool,
    dt_limit: tuple[float, float],
) -> None:
    """Run one scan, writing into out, final_states and chunk_states.

    The tensors are those of `operation.TENSORS`, None where absent. Raises `UsageError` for
    tensors the kernels do not take and `MissingLaunchError` when the loaded bundle lacks a launch.
    """
    given = (
        x, dt, A, B, C, D, z, dt_bias, seq_idx, spans, last_chunks, out,
        initial_states, final_states, final_slots, chunk_states,
    )  # fmt: skip
    if torch.compiler.is_compiling():
        torch.ops.ssd_aot.scan(*given, chunk_size, dt_softplus, *dt_limit)
        return
    if not substituted() and recall.recall(given, chunk_size, dt_softplus, dt_limit):
        return
    _scan_anew(given, chunk_size, dt_softplus, dt_limit)


def _scan_anew(
    given: tuple[Tensor | None, ...],
    chunk_size: int,
    dt_softplus: bool,
    dt_limit: tuple[float, float],
) -> None:
    tensors: dict[str, Tensor] = {}
    as_given = True
    for name, tensor in zip(TENSORS, given, strict=True):
        if tensor is None:
            continue
        taken = tensor
        if name in INDEX_POINTERS:
            taken = as_int32(tensor)
        elif name in COPIED_WHEN_STRIDED:
            taken = unit_inner_stride(tensor)
        as_given = as_given and taken.data_ptr() == tensor.data_ptr()
        tensors[name] = taken
    check_tensors(tensors, chunk_size)
    _check_written(tensors)
    generation = recall.generation()
    counts = counts_of(tensors)
    if counts.sequences == 0:
        return
    executor = current_executor()
    layout = layout_of(tensors, dt_softplus, dt_limit, executor.blocking)
    executor.run(tensors, layout, counts)
    # Another bundle may have come into service meanwhile.
    same = generation == recall.generation()
    if as_given and same and isinstance(executor, Recalling):
        executor.remember(given, layout, chunk_size, dt_softplus, dt_limit)


def _check_written(tensors: dict[str, Tensor]) -> None:
    for name in WRITTEN:
        if name in tensors and tensors[name].stride(-1) != 1:
            raise UsageError(
                "written tensor has a strided last dimension",
                where=name,
                found=f"stride {tensors[name].stride(-1)}",
                wanted="stride 1",
                mend="pass a tensor whose last dimension is contiguous",
            )


def new_states(x: Tensor, count: int, dstate: int, dtype: torch.dtype) -> Tensor:
    """Uninitialised states (count, nheads, headdim, dstate)."""
    nheads, headdim = x.shape[-2:]
    return torch.empty(count, nheads, headdim, dstate, dtype=dtype, device=x.device)


def _scan_operator(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    seq_idx: Tensor | None,
    spans: Tensor | None,
    last_chunks: Tensor | None,
    out: Tensor,
    initial_states: Tensor | None,
    final_states: Tensor | None,
    final_slots: Tensor | None,
    chunk_states: Tensor | None,
    chunk_size: int,
    dt_softplus: bool,
    dt_min: float,
    dt_max: float,
) -> None:
    scan(
        x, dt, A, B, C, D, z, dt_bias, seq_idx, spans, last_chunks, out,
        initial_states, final_states, final_slots, chunk_states, chunk_size, dt_softplus,
        (dt_min, dt_max),
    )  # fmt: skip


# What torch.compile sees of a scan: an opaque operation that writes these tensors and returns
# nothing, so its fake implementation has nothing to make.
torch.library.custom_op("ssd_aot::scan", mutates_args=("out", "final_states", "chunk_states"))(
    _scan_operator
).register_fake(lambda *_: None)
