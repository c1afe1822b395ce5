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
    tokens, nheads, headdim = x.shape
    ngroups, dstate = B.shape[1:]
    wide = {"dtype": torch.float64, "device": x.device}
    steps = dt.double()
    if dt_bias is not None:
        steps = steps + dt_bias.double()
    if dt_softplus:
        steps = torch.nn.functional.softplus(steps, threshold=700.0)
    steps = steps.clamp(*dt_limit)
    decay = torch.exp(steps * A.double())
    inputs = x.double() * steps[..., None]
    heads_per_group = nheads // ngroups
    state = torch.zeros(len(lengths), nheads, headdim, dstate, **wide)  # type: ignore[arg-type]
    if initial_states is not None:
        state = initial_states.double().clone()
    out = torch.zeros(tokens, nheads, headdim, **wide)  # type: ignore[arg-type]
    kept = torch.zeros(tokens, nheads, headdim, dstate, **wide) if keep_states else None  # type: ignore[arg-type]
    length = torch.tensor(lengths, dtype=torch.long)
    start = torch.cumsum(length, 0) - length
    for step in range(max(lengths, default=0)):
        active = (length > step).nonzero()[:, 0]
        at = (start[active] + step).to(x.device)
        rows = active.to(x.device)
        b = B[at].double().repeat_interleave(heads_per_group, dim=1)
        c = C[at].double().repeat_interleave(heads_per_group, dim=1)
        now = state[rows] * decay[at][..., None, None] + inputs[at][..., None] * b[:, :, None, :]
        state[rows] = now
        out[at] = (now @ c[..., None])[..., 0]
        if kept is not None:
            kept[at] = now
    if D is not None:
        skip = D.double()
        out = out + (skip[:, None] if skip.dim() == 1 else skip) * x.double()
    if z is not None:
        out = out * torch.nn.functional.silu(z.double())
    return ReferenceResult(out, state, kept)
