# mypy: ignore-errors
import triton
import triton.language as tl

TILES = [triton.Config({"BLOCK": block}, num_warps=4) for block in (16, 32, 64, 128, 256)]


@triton.autotune(configs=TILES[:2], key=["hdim"])
@triton.jit
def _chunk_scan_fwd_kernel(
    x_ptr, init_ptr, pieces_ptr, pieces, seqlen, hdim, HAS_INITSTATES: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    tl.store(x_ptr + tl.arange(0, BLOCK), 0.0)


@triton.autotune(configs=TILES[:2], key=["dim"])
@triton.jit
def _state_passing_fwd_kernel(
    x_ptr, init_ptr, dim, nchunks, HAS_INITSTATES: tl.constexpr, IS_CONT_BATCHED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    tl.store(x_ptr + tl.arange(0, BLOCK), 0.0)


@triton.autotune(configs=TILES, key=["hdim"])
@triton.jit
def _chunk_state_varlen_kernel(
    x_ptr, init_ptr, ends_ptr, hdim, HAS_INITSTATES: tl.constexpr, BLOCK: tl.constexpr
):
    tl.store(x_ptr + tl.arange(0, BLOCK), 0.0)
