"""`mamba_chunk_scan_combined` with mamba_ssm 2.3.2's signature and meaning, forward only."""

from __future__ import annotations

import torch
from torch import Tensor

from ssd_aot.ops.batched import scan_batch


def mamba_chunk_scan_combined(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    seq_idx: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    return_varlen_states: bool = False,
    state_dtype: torch.dtype | None = None,
) -> Tensor | tuple[Tensor, ...]:
    """The SSD scan over batch rows.

    x, z (batch, tokens, nheads, headdim); dt (batch, tokens, nheads); A (nheads,) float32; B, C
    (batch, tokens, ngroups, dstate); D (nheads,) or (nheads, headdim); dt_bias (nheads,);
    initial_states (batch, nheads, headdim, dstate), or one a sequence with return_varlen_states;
    seq_idx (batch, tokens) and cu_seqlens (sequences + 1,) int32 or int64.

    Returns out (batch, tokens, nheads, headdim), followed by the final states (batch, nheads,
    headdim, dstate) with `return_final_states` and by the states of the packed sequences with
    `return_varlen_states`, in `state_dtype` (x's dtype when None). Raises as
    `ops.mamba_chunk_scan_combined_varlen` does.
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    final, varlen = scan_batch(
        x, dt, A, B, C, chunk_size, out, D=D, z=z, dt_bias=dt_bias,
        initial_states=initial_states, seq_idx=seq_idx, cu_seqlens=cu_seqlens,
        dt_softplus=dt_softplus, dt_limit=dt_limit, return_final_states=return_final_states,
        return_varlen_states=return_varlen_states, state_dtype=state_dtype,
    )  # fmt: skip
    extra = [final] if return_final_states else []
    extra += [varlen] if return_varlen_states else []
    states = tuple(state for state in extra if state is not None)
    return (out, *states) if states else out
