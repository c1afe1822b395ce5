"""The judge of every result: the state-space recurrence, token by token, in float64.

    S_t = exp(dt_t A) S_{t-1} + dt_t x_t B_t^T        y_t = S_t C_t + D x_t, gated by silu(z_t)

Source: Dao and Gu, Transformers are SSMs, 2024, equation 1 with scalar A per head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ReferenceResult:
    """`out` (tokens, nheads, headdim), `final_states` (sequences, nheads, headdim, dstate) and
    `states` (tokens, nheads, headdim, dstate) or None, all float64."""

    out: Tensor
    final_states: Tensor
    states: Tensor | None


def ssd_reference(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    lengths: list[int],
    *,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    keep_states: bool = False,
) -> ReferenceResult:
    """Run the recurrence over packed sequences of the given lengths.

    x, z (tokens, nheads, headdim); dt (tokens, nheads); A, dt_bias (nheads,); B, C (tokens,
    ngroups, dstate); D (nheads,) or (nheads, headdim); initial_states (sequences, nheads,
    headdim, dstate). Any floating dtype; all arithmetic is float64. All sequences advance
    together, one token a step, so a GPU judges large shapes in reasonable time.
    """
    nheads, headdim = x.shape[1:]
    ngroups, dstate = B.shape[1:]
    steps = dt.double()
    if dt_bias is not None:
        steps = steps + dt_bias.double()
    if dt_softplus:
        steps = torch.nn.functional.softplus(steps, threshold=700.0)
    steps = steps.clamp(*dt_limit)
    # Longest first: the sequences still running at a step are then the first rows of the state.
    order = sorted(range(len(lengths)), key=lambda sequence: -lengths[sequence])
    padding = _Padding(lengths, order, x.device)
    decay = padding.spread(torch.exp(steps * A.double()))[..., None, None]
    inputs = padding.spread(x.double() * steps[..., None])[..., None]
    repeats = nheads // ngroups
    b = padding.spread(B.double()).repeat_interleave(repeats, dim=2)[..., None, :]
    c = padding.spread(C.double()).repeat_interleave(repeats, dim=2)[..., None]
    state = torch.zeros(len(lengths), nheads, headdim, dstate, dtype=torch.float64, device=x.device)
    if initial_states is not None:
        state.copy_(initial_states[order])
    y = inputs.new_zeros(*inputs.shape[:2], nheads, headdim)
    kept = y.new_zeros(*y.shape, dstate) if keep_states else None
    for step, running in enumerate(padding.running):
        now = state[:running]
        now.mul_(decay[step, :running]).addcmul_(inputs[step, :running], b[step, :running])
        y[step, :running] = (now @ c[step, :running])[..., 0]
        if kept is not None:
            kept[step, :running] = now
    out = padding.gather(y)
    if D is not None:
        skip = D.double()
        out = out + (skip[:, None] if skip.dim() == 1 else skip) * x.double()
    if z is not None:
        out = out * torch.nn.functional.silu(z.double())
    final = torch.empty_like(state)
    final[order] = state
    return ReferenceResult(out, final, None if kept is None else padding.gather(kept))


class _Padding:
    """Packed tokens as (steps, sequences, …), sequences in a given order, and back."""

    def __init__(self, lengths: list[int], order: list[int], device: torch.device) -> None:
        length = torch.tensor(lengths, dtype=torch.long)
        start = torch.cumsum(length, 0) - length
        rank = torch.empty_like(length)
        rank[order] = torch.arange(len(order))
        owner = torch.repeat_interleave(torch.arange(len(lengths)), length)
        step = torch.arange(len(owner)) - start[owner]
        self._place = (step.to(device), rank[owner].to(device))
        self._shape = (max(lengths, default=0), len(lengths))
        self.running = [int((length > step).sum()) for step in range(self._shape[0])]

    def spread(self, packed: Tensor) -> Tensor:
        padded = packed.new_zeros(*self._shape, *packed.shape[1:])
        padded[self._place] = packed
        return padded

    def gather(self, padded: Tensor) -> Tensor:
        return padded[self._place]
