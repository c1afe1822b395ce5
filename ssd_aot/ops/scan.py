"""One entry behind all signatures: check, describe, execute."""

from __future__ import annotations

import torch
from torch import Tensor

from ssd_aot.ops.arguments import (
    as_int32,
    check_tensors,
    counts_of,
    layout_of,
    unit_inner_stride,
)
from ssd_aot.ops.execution import current_executor

INDICES = ("seq_idx", "spans", "sequences", "last_chunks", "final_slots")
COPIED_WHEN_STRIDED = ("x", "B", "C", "z", "D", "A", "dt_bias", "initial_states")
WRITTEN = ("out", "final_states", "chunk_states")


def scan(
    given: dict[str, Tensor | None],
    chunk_size: int,
    dt_softplus: bool,
    dt_limit: tuple[float, float],
) -> None:
    """Run one scan over `given` (None: absent), writing into out, final_states and chunk_states.

    Names are those of `operation.PARAMETERS`. Raises `UsageError` for tensors the kernels do not
    take and `MissingLaunchError` when the loaded bundle lacks a launch.
    """
    tensors: dict[str, Tensor] = {}
    for name, tensor in given.items():
        if tensor is None:
            continue
        if name in INDICES:
            tensor = as_int32(tensor)
        elif name in COPIED_WHEN_STRIDED:
            tensor = unit_inner_stride(tensor)
        tensors[name] = tensor
    check_tensors(tensors, chunk_size)
    check_written(tensors)
    counts = counts_of(tensors)
    if counts.sequences == 0:
        return
    executor = current_executor()
    layout = layout_of(tensors, dt_softplus, dt_limit, executor.blocking)
    executor.run(tensors, layout, counts)


def check_written(tensors: dict[str, Tensor]) -> None:
    from ssd_aot.ops.arguments import check

    for name in WRITTEN:
        if name in tensors:
            inner = tensors[name].stride(-1)
            check(inner == 1, name, "written tensor has a strided last dimension", inner,
                  "stride 1", "pass a tensor whose last dimension is contiguous")  # fmt: skip


def new_states(x: Tensor, count: int, dstate: int, dtype: torch.dtype) -> Tensor:
    """Uninitialised states (count, nheads, headdim, dstate)."""
    nheads, headdim = x.shape[-2:]
    return torch.empty(count, nheads, headdim, dstate, dtype=dtype, device=x.device)
