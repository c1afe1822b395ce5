"""The batch form of the scan, on which the mamba_ssm and TensorRT-LLM signatures stand."""

from __future__ import annotations

import torch
from torch import Tensor

from ssd_aot.errors import UsageError
from ssd_aot.ops.scanning import new_states, scan


def scan_batch(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    out: Tensor,
    *,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    initial_states: Tensor | None,
    seq_idx: Tensor | None,
    cu_seqlens: Tensor | None,
    dt_softplus: bool,
    dt_limit: tuple[float, float],
    return_final_states: bool,
    return_varlen_states: bool,
    state_dtype: torch.dtype | None,
) -> tuple[Tensor | None, Tensor | None]:
    """(final states of the batch rows, final states of the packed sequences), None if not asked.

    Without `return_varlen_states`, `cu_seqlens` is ignored, every batch row is one sequence, and a
    token whose `seq_idx` differs from the one before it starts afresh; the first token's is
    compared with 0. With it, the batch is one row of packed sequences that `cu_seqlens` delimits,
    `initial_states` holds one state a sequence, and the row's final state is the last sequence's.
    """
    wants_states = return_final_states or return_varlen_states
    dtype = x.dtype if state_dtype is None else state_dtype
    if not return_varlen_states:
        states = new_states(x, x.shape[0], B.shape[-1], dtype) if wants_states else None
        scan(
            x, dt, A, B, C, D, z, dt_bias, seq_idx, None, None, out, initial_states,
            states, None, None, chunk_size, dt_softplus, dt_limit,
        )  # fmt: skip
        return states, None
    if cu_seqlens is None or x.shape[0] != 1:
        raise UsageError(
            "return_varlen_states wants one batch row of packed sequences",
            where="cu_seqlens" if cu_seqlens is None else "x",
            found="None" if cu_seqlens is None else f"batch {x.shape[0]}",
            wanted="cu_seqlens (sequences + 1,) and batch 1",
            mend="pack the sequences into one row and pass their offsets",
        )
    states = new_states(x, cu_seqlens.shape[0] - 1, B.shape[-1], dtype)
    scan(
        x[0], dt[0], A, B[0], C[0], D, None if z is None else z[0], dt_bias, None, cu_seqlens,
        None, out[0], initial_states, states, None, None, chunk_size, dt_softplus,
        dt_limit,
    )  # fmt: skip
    return states[-1:], states
