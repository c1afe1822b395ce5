"""Small scan problems on the CPU and the errors that a right kernel stays under."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from signature_builders import signature
from torch import Tensor

from ssd_aot.problems import NO_LIMIT, Problem, make_problem
from ssd_aot.signatures import Dtype

# Relative errors (norm of the difference over norm of the reference) that a right kernel stays
# under. fp32: sums of a few hundred float32 products. fp16 and bf16: two roundings of 2**-11 and
# 2**-8 on the way (weights and state as operands, then the output); the interpreter truncates
# bfloat16 where the GPU rounds, hence its factor of two.
TOLERANCE: dict[str, float] = {"fp32": 1e-5, "fp16": 2e-3, "bf16": 1.6e-2}


def problem(
    lengths: Sequence[int] = (5, 40),
    *,
    dt_limit: tuple[float, float] = NO_LIMIT,
    rate: float = 1.0,
    seed: int = 0,
    state_dtype: Dtype = "fp32",
    **fields: object,
) -> Problem:
    """A problem of two heads of 16 by 16 with chunks of 32 tokens, unless `fields` of the
    signature say otherwise."""
    small: dict[str, object] = {
        "nheads": 2, "ngroups": 1, "headdim": 16, "dstate": 16, "chunk_size": 32,
        "has_initstates": True, "state_dtype": state_dtype, "dtype": "fp32",
    }  # fmt: skip
    small |= fields
    same = {"dt_dtype": small["dtype"], "param_dtype": small["dtype"]}
    return make_problem(
        signature(**(same | small)), lengths, device="cpu", decode_tokens=1, seed=seed,
        rate=rate, dt_limit=dt_limit,
    )  # fmt: skip


def part(whole: Problem, tokens: slice, initial_states: Tensor | None) -> Problem:
    """Some tokens of a one-sequence problem as a problem of their own."""
    start, stop, _ = tokens.indices(sum(whole.lengths))
    length = stop - start
    cut = {name: getattr(whole, name)[tokens] for name in ("x", "dt", "B", "C")}
    made = make_problem(whole.signature, (length,), device="cpu")
    return replace(
        whole, lengths=(length,), initial_states=initial_states, cu_seqlens=made.cu_seqlens,
        chunks=made.chunks, **cut,
    )  # fmt: skip


def error(found: Tensor | None, wanted: Tensor | None) -> float:
    """Norm of the difference over the norm of the reference; NaN where anything is NaN."""
    assert found is not None and wanted is not None
    scale = wanted.double().norm().clamp_min(1e-30)
    return float((found.double() - wanted.double()).norm() / scale)
