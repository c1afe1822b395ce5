# mypy: ignore-errors
"""Five kernels of their own kinds, as a server has them beside its model."""

import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[
        triton.Config({"WIDTH": 1, "BLOCK": block}, num_warps=block // 32)
        for block in (32, 64, 128)
    ],
    key=["n"],
)
@triton.jit
def tuned(x_ptr, y_ptr, n, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    i = tl.program_id(0) * BLOCK * WIDTH + tl.arange(0, BLOCK * WIDTH)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n, other=0.0) + 1.0, mask=i < n)


@triton.heuristics({"EVEN": lambda args: args["n"] % 64 == 0})
@triton.jit
def by_heuristic(x_ptr, y_ptr, n, EVEN: tl.constexpr):
    i = tl.program_id(0) * 64 + tl.arange(0, 64)
    keep = EVEN | (i < n)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=keep, other=0.0) * 2.0, mask=keep)


@triton.jit
def of_a_tuple(pointers, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(pointers[0] + i, mask=i < n, other=0.0)
    if pointers[1] is not None:
        total += tl.load(pointers[1] + i, mask=i < n, other=0.0)
    tl.store(pointers[2][0] + i, total, mask=i < n)


@triton.jit
def doubled(x):
    return x + x


@triton.jit
def squared(x):
    return x * x


@triton.jit
def of_a_function(x_ptr, y_ptr, n, F: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, F(tl.load(x_ptr + i, mask=i < n, other=0.0)), mask=i < n)


@triton.jit
def halved(x):
    return doubled(x) * 0.25


@triton.jit
def nested(x_ptr, y_ptr, n, BLOCK: tl.constexpr, DTYPE: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0).to(DTYPE)
    tl.store(y_ptr + i, halved(x), mask=i < n)


def run(device, n=100):
    """All of them; their outputs."""
    x = torch.arange(n, dtype=torch.float32, device=device)
    y = [torch.empty_like(x) for _ in range(6)]
    blocks = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)  # noqa: E731
    tuned[blocks](x, y[0], n)
    by_heuristic[(triton.cdiv(n, 64),)](x, y[1], n)
    of_a_tuple[blocks]((x, None, (y[2],)), n, BLOCK=64)
    of_a_function[blocks](x, y[3], n, F=doubled, BLOCK=64)
    of_a_function[blocks](x, y[4], n, F=squared, BLOCK=64, num_warps=2)
    nested[blocks](x, y[5], n, BLOCK=64, DTYPE=tl.bfloat16)
    return x, y


def expected(x):
    """What `run` gives."""
    return [x + 1, x * 2, x, x + x, x * x, x.to(torch.bfloat16) * 0.5]
