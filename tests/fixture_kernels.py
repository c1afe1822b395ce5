# mypy: ignore-errors
"""Small Triton kernels that the tests compile."""

import triton
import triton.language as tl


@triton.jit
def add_one(x_ptr, y_ptr, n, stride, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i * stride, mask=i < n, other=0.0)
    tl.store(y_ptr + i, x + 1, mask=i < n)


@triton.jit
def optional_bias(
    x_ptr, bias_ptr, y_ptr, scale, BLOCK: tl.constexpr, DOUBLED: tl.constexpr = False
):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i) * scale
    if bias_ptr is not None:
        x += tl.load(bias_ptr + i)
    tl.store(y_ptr + i, x * 2 if DOUBLED else x)


@triton.jit
def typed_count(x_ptr, n: tl.int64, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, i.to(tl.float32), mask=i < n)


@triton.jit(do_not_specialize=["n"])
def unspecialised_count(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, i.to(tl.float32), mask=i < n)


@triton.jit
def matmul(a_ptr, b_ptr, c_ptr, n, BLOCK: tl.constexpr):
    """Shared memory grows with the block and the stages."""
    i = tl.arange(0, BLOCK)
    tile = i[:, None] * BLOCK + i[None, :]
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for step in range(n):
        a = tl.load(a_ptr + step * BLOCK * BLOCK + tile)
        b = tl.load(b_ptr + step * BLOCK * BLOCK + tile)
        total = tl.dot(a, b, total)
    tl.store(c_ptr + tile, total)


@triton.jit
def hungry(x_ptr, BLOCK: tl.constexpr):
    """Holds so much a thread that a low register cap makes ptxas spill."""
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    y = tl.load(x_ptr + BLOCK + i)
    total = tl.cumsum(x, 0)
    tl.store(x_ptr + i, total * tl.sum(x * y, 0) + y)


@triton.jit
def does_not_compile(x_ptr, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK > 4096, "the block is too small")
    tl.store(x_ptr + tl.arange(0, BLOCK), 0.0)


@triton.jit
def fails_in_ptxas(x_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    y = tl.inline_asm_elementwise(
        "no.such.instruction $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.store(x_ptr + i, y)
