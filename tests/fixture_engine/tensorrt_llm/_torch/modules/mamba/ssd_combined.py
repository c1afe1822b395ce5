# mypy: ignore-errors
from .ssd_chunk_scan import (
    _chunk_scan_fwd_kernel,
    _chunk_state_varlen_kernel,
    _state_passing_fwd_kernel,
)


def mamba_chunk_scan_combined(
    x, dt, A, B, C, chunk_size, D=None, z=None, dt_bias=None, initial_states=None, seq_idx=None,
    chunk_indices=None, chunk_offsets=None, cu_seqlens=None, dt_softplus=False, dt_limit=None,
    out=None, return_final_states=False, return_varlen_states=False, state_dtype=None,
):  # fmt: skip
    rows, tokens, _, headdim = x.shape
    has, grid = initial_states is not None, (rows,)
    chunks, pieces = -(-tokens // chunk_size), 0 if chunk_indices is None else len(chunk_indices)
    _state_passing_fwd_kernel[grid](
        x, initial_states, headdim, chunks, HAS_INITSTATES=has,
        IS_CONT_BATCHED=cu_seqlens is not None,
    )  # fmt: skip
    _chunk_scan_fwd_kernel[grid](
        x, initial_states, chunk_indices, pieces, tokens, headdim, HAS_INITSTATES=has
    )
    if return_varlen_states:
        _chunk_state_varlen_kernel[grid](x, initial_states, cu_seqlens, headdim, HAS_INITSTATES=has)
