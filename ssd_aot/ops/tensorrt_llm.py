"""`mamba_chunk_scan_combined` with TensorRT-LLM's signature and meaning."""

from __future__ import annotations

import torch
from torch import Tensor

from ssd_aot.errors import UsageError
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
    chunk_indices: Tensor | None = None,
    chunk_offsets: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    out: Tensor | None = None,
    return_final_states: bool = False,
    return_varlen_states: bool = False,
    state_dtype: torch.dtype | None = None,
) -> Tensor | tuple[Tensor, Tensor] | None:
    """The SSD scan over batch rows, written into `out`.

    Shapes and dtypes as `ops.mamba_ssm.mamba_chunk_scan_combined`. `chunk_indices` and
    `chunk_offsets` are accepted and not needed: the kernels cut sequences themselves.

    Returns None, the final states (batch, nheads, headdim, dstate), the packed sequences' states,
    or the pair (final, packed), as asked. Raises `UsageError` when `out` is None, and as
    `ops.mamba_chunk_scan_combined_varlen` does.
    """
    if out is None:
        raise UsageError(
            "the output tensor is missing",
            where="out",
            found="None",
            wanted="a tensor of x's shape and dtype",
            mend="allocate out and pass it",
        )
    final, varlen = scan_batch(
        x, dt, A, B, C, chunk_size, out, D=D, z=z, dt_bias=dt_bias,
        initial_states=initial_states, seq_idx=seq_idx, cu_seqlens=cu_seqlens,
        dt_softplus=dt_softplus, dt_limit=dt_limit, return_final_states=return_final_states,
        return_varlen_states=return_varlen_states, state_dtype=state_dtype,
    )  # fmt: skip
    if return_varlen_states:
        assert varlen is not None
        if return_final_states:
            assert final is not None
            return final, varlen
        return varlen
    return final if return_final_states else None
