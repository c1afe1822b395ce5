# mypy: ignore-errors
"""Kernels and what launches them; imported anew for each capture."""

import torch
import triton
import triton.language as tl

CHOSEN = {}
HOOKED = []


def no_wider_than_n(configs, named_args, **kwargs):
    args = {**named_args, **kwargs}
    return [config for config in configs if config.kwargs["BLOCK"] <= max(args["n"], 16)]


@triton.autotune(
    configs=[triton.Config({"BLOCK": block}, num_warps=block // 16) for block in (16, 32, 64)],
    key=["n"],
    prune_configs_by={"early_config_prune": no_wider_than_n},
)
@triton.jit
def pruned(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n, other=0.0), mask=i < n)


@triton.autotune(
    configs=[triton.Config({"BLOCK": block}, num_warps=block // 16) for block in (16, 32)],
    key=["n"],
)
@triton.jit
def copied(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n, other=0.0), mask=i < n)


@triton.autotune(
    configs=[triton.Config({"BLOCK": block}, pre_hook=HOOKED.append) for block in (16, 32)],
    key=[],
)
@triton.jit
def hooked(x_ptr, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), 0.0)


@triton.heuristics({"EVEN": lambda args: args["n"] % 64 == 0})
@triton.jit
def by_heuristic(x_ptr, n, EVEN: tl.constexpr):
    i = tl.arange(0, 64)
    tl.store(x_ptr + i, 0.0, mask=EVEN | (i < n))


@triton.jit(do_not_specialize=["n"])
def unspecialised(x_ptr, n):
    i = tl.arange(0, 64)
    tl.store(x_ptr + i, 0.0, mask=i < n)


@triton.jit
def strided(x_ptr, stride):
    tl.store(x_ptr + tl.arange(0, 16) * stride, 0.0)


@triton.jit
def added(a_ptr, b_ptr, c_ptr, bias_ptr, DTYPE: tl.constexpr):
    i = tl.arange(0, 16)
    total = tl.load(a_ptr + i).to(DTYPE) + tl.load(b_ptr + i).to(DTYPE)
    if bias_ptr is not None:
        total += tl.load(bias_ptr + i)
    tl.store(c_ptr + i, total)


def meta(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


def run_pruned(n):
    pruned[lambda META: (triton.cdiv(n, META["BLOCK"]),)](meta(n), meta(n), n)


def run_copied(n):
    copied[lambda META: (triton.cdiv(n, META["BLOCK"]),)](meta(n), meta(n), n=n)


def run_pruned_at(n, offset):
    """As `run_pruned`, its input a view that begins `offset` elements into a tensor."""
    pruned[(1,)](meta(n + offset)[offset:], meta(n), n)


def run_hooked():
    hooked[(1,)](meta(64))


def run_chosen(n):
    """Goes past the tuner once it has chosen."""
    given = {"x_ptr": meta(n), "y_ptr": meta(n), "n": n}
    if n not in CHOSEN:
        pruned[(1,)](**given)
        CHOSEN[n] = pruned.best_config
        return
    pruned.fn[(1,)](**given, **CHOSEN[n].all_kwargs())


def run_by_heuristic(n):
    by_heuristic[(1,)](meta(64), n)


def run_unspecialised(n):
    with torch.get_device_module("meta").device(None):
        unspecialised[(1,)](meta(64), n)


def run_strided(stride):
    with torch.cuda.device(None):
        strided[(1,)](meta(16 * stride)[::stride], stride)


def run_added(offsets, bias=None, dtype=tl.float32):
    """The sum of views that begin `offsets` elements into tensors of their own."""
    views = [meta(64)[offset : offset + 16] for offset in offsets]
    added[(1,)](*views, bias, DTYPE=dtype)
