"""Scan problems on the CPU, drawn at random, with the reference's answer beside the operation's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from ssd_aot import ops
from ssd_aot.reference import ReferenceResult, ssd_reference

# Relative errors (norm of the difference over norm of the reference) that a right kernel stays
# under. fp32: sums of a few hundred float32 products. fp16 and bf16: two roundings of 2**-11 and
# 2**-8 on the way (weights and state as operands, then the output); the interpreter truncates
# bfloat16 where the GPU rounds, hence its factor of two.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@dataclass(frozen=True)
class Problem:
    """Arguments of one packed scan, all on the CPU."""

    lengths: Sequence[int]
    x: Tensor
    dt: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None
    z: Tensor | None
    dt_bias: Tensor | None
    initial_states: Tensor | None
    dt_softplus: bool
    dt_limit: tuple[float, float]
    state_dtype: torch.dtype

    @property
    def cu_seqlens(self) -> Tensor:
        return torch.tensor([0, *accumulate(self.lengths)], dtype=torch.int32)

    def chunks(self, chunk_size: int) -> tuple[Tensor, Tensor, Tensor]:
        """cu_chunk_seqlens, last_chunk_indices and seq_idx as an engine's scheduler makes them."""
        ends, last, owner = [0], [], []
        for sequence, length in enumerate(self.lengths):
            for start in range(0, length, chunk_size):
                ends.append(ends[-1] + min(chunk_size, length - start))
                owner.append(sequence)
            last.append(len(ends) - 2)
        return tuple(torch.tensor(v, dtype=torch.int32) for v in (ends, last, owner))  # type: ignore[return-value]

    def reference(self, keep_states: bool = False) -> ReferenceResult:
        return ssd_reference(
            self.x, self.dt, self.A, self.B, self.C, list(self.lengths), D=self.D, z=self.z,
            dt_bias=self.dt_bias, initial_states=self.initial_states,
            dt_softplus=self.dt_softplus, dt_limit=self.dt_limit, keep_states=keep_states,
        )  # fmt: skip

    def run(self, intermediate: bool = False, **changes: object) -> tuple[Tensor, Tensor]:
        """(out, states) of the packed operation, into an output filled with NaN."""
        out = torch.full_like(self.x, float("nan"))
        ends, last, owner = self.chunks(32)
        states = ops.mamba_chunk_scan_combined_varlen(
            self.x, self.dt, self.A, self.B, self.C, 32, self.cu_seqlens, ends, last, owner, out,
            D=self.D, z=self.z, dt_bias=self.dt_bias, initial_states=self.initial_states,
            dt_softplus=self.dt_softplus, dt_limit=self.dt_limit,
            return_intermediate_states=intermediate, state_dtype=self.state_dtype, **changes,  # type: ignore[arg-type]
        )  # fmt: skip
        assert states is not None
        return out, states


def problem(
    lengths: Sequence[int] = (5, 40),
    *,
    heads: int = 2,
    groups: int = 1,
    headdim: int = 16,
    dstate: int = 16,
    dtype: torch.dtype = torch.float32,
    state_dtype: torch.dtype = torch.float32,
    D: str = "head",
    z: bool = False,
    dt_bias: bool = True,
    dt_softplus: bool = True,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    initial_states: bool = True,
    rate: float = 1.0,
    seed: int = 0,
) -> Problem:
    """A random problem whose x, B and C are views of one convolution output, dt of a projection."""
    draw = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw).to(dtype)

    tokens, inner, state = sum(lengths), heads * headdim, groups * dstate
    convolved = random(tokens + 1, inner + 2 * state)[1:]
    x, B, C = convolved.split([inner, state, state], dim=-1)
    skip = {"none": None, "head": random(heads), "headdim": random(heads, headdim)}[D]
    return Problem(
        lengths=lengths,
        x=x.unflatten(-1, (heads, headdim)),
        dt=random(tokens, heads + 3)[:, 3:],
        A=-(torch.rand(heads, generator=draw) + 0.5) * rate,
        B=B.unflatten(-1, (groups, dstate)),
        C=C.unflatten(-1, (groups, dstate)),
        D=skip,
        z=random(tokens, heads, headdim) if z else None,
        dt_bias=random(heads) if dt_bias else None,
        initial_states=random(len(lengths), heads, headdim, dstate).to(state_dtype)
        if initial_states
        else None,
        dt_softplus=dt_softplus,
        dt_limit=dt_limit,
        state_dtype=state_dtype,
    )


def error(found: Tensor, wanted: Tensor) -> float:
    """Norm of the difference over the norm of the reference; NaN where anything is NaN."""
    scale = wanted.double().norm().clamp_min(1e-30)
    return float((found.double() - wanted.double()).norm() / scale)
