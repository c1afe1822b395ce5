"""The public SSD operations, with the engines' own signatures, on the builtin kernels.

`mamba_chunk_scan_combined_varlen` as vLLM calls it; `mamba_ssm.mamba_chunk_scan_combined` and
`tensorrt_llm.mamba_chunk_scan_combined` as those two call it; `prepare` for the packed form bound
once per layer. All are forward only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ssd_aot.errors import UsageError
from ssd_aot.ops import mamba_ssm, tensorrt_llm
from ssd_aot.ops.prepared import PreparedLayer, prepare
from ssd_aot.ops.scanning import new_states, scan

__all__ = [
    "PreparedLayer",
    "mamba_chunk_scan_combined_varlen",
    "mamba_ssm",
    "prepare",
    "tensorrt_llm",
]


def mamba_chunk_scan_combined_varlen(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    cu_seqlens: Tensor,
    cu_chunk_seqlens: Tensor,
    last_chunk_indices: Tensor,
    seq_idx: Tensor,
    out: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_intermediate_states: bool = False,
    state_dtype: torch.dtype | None = None,
    final_states_out: Tensor | None = None,
    final_state_indices: Tensor | None = None,
) -> Tensor | None:
    """The SSD scan over packed sequences, with vLLM 0.33's signature and meaning.

    x, z, out (tokens, nheads, headdim) in bf16, fp16 or fp32; dt (tokens, nheads); A (nheads,)
    float32; B, C (tokens, ngroups, dstate) of x's dtype; D (nheads,) or (nheads, headdim);
    dt_bias (nheads,); cu_seqlens (sequences + 1,), cu_chunk_seqlens (chunks + 1,),
    last_chunk_indices (sequences,) and final_state_indices (sequences,) int32 or int64;
    initial_states (sequences, nheads, headdim, dstate) and final_states_out (slots, nheads,
    headdim, dstate) of one state dtype. `cu_chunk_seqlens`, `last_chunk_indices` and `seq_idx`
    (the sequence of each chunk) matter only for the intermediate states: outputs and final states
    do not depend on how sequences are cut into chunks.

    Writes `out`. Returns the state after each of the caller's chunks (chunks, nheads, headdim,
    dstate) with `return_intermediate_states`; None when `final_states_out` is given, whose slots
    `final_state_indices` then hold the final states; else the final states (sequences, …) in
    `state_dtype` (x's dtype when None).

    Raises `UsageError` for arguments outside this, `MissingLaunchError` for a launch that the
    loaded bundle lacks.
    """
    if final_states_out is not None and return_intermediate_states:
        raise UsageError(
            "final states and intermediate states were both asked for",
            where="return_intermediate_states",
            found="final_states_out and return_intermediate_states=True",
            wanted="one of them",
            mend="take the final states from the intermediate ones at last_chunk_indices",
        )
    if (final_states_out is None) != (final_state_indices is None):
        raise UsageError(
            "final_states_out and final_state_indices go together",
            where="final_state_indices",
            found="one of the two",
            wanted="both or neither",
            mend="pass the slot of each sequence with the state cache",
        )
    chunk_states = final_states = None
    if final_states_out is None:
        dtype = x.dtype if state_dtype is None else state_dtype
        if return_intermediate_states:
            chunk_states = new_states(x, cu_chunk_seqlens.shape[0] - 1, B.shape[-1], dtype)
        else:
            final_states = new_states(x, cu_seqlens.shape[0] - 1, B.shape[-1], dtype)
    intermediate = return_intermediate_states
    scan(
        x, dt, A, B, C, D, z, dt_bias, None,
        cu_chunk_seqlens if intermediate else cu_seqlens,
        last_chunk_indices if intermediate else None, out, initial_states,
        final_states if final_states_out is None else final_states_out, final_state_indices,
        chunk_states, chunk_size, dt_softplus, dt_limit,
    )  # fmt: skip
    return chunk_states if intermediate else final_states
