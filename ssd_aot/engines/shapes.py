"""Tensors without memory, shaped as the mixers of engines shape them."""

from __future__ import annotations

import torch
from torch import Tensor

from ssd_aot.problems import DTYPES
from ssd_aot.signatures import Signature


def meta(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def indices(count: int) -> Tensor:
    return meta(count, dtype=torch.int32)


def projected(signature: Signature, *rows: int) -> Tensor:
    """The input projection, (*rows, z, x, B, C, dt)."""
    s = signature
    width = 2 * s.nheads * s.headdim + 2 * s.ngroups * s.dstate + s.nheads
    return meta(*rows, width, dtype=DTYPES[s.dtype])


def convolution_input(signature: Signature, projection: Tensor) -> Tensor:
    """The slice of the projection that is x, B and C, (*rows, channels)."""
    s = signature
    inner = s.nheads * s.headdim
    return projection[..., inner : 2 * inner + 2 * s.ngroups * s.dstate]


def split(signature: Signature, convolved: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x (*rows, nheads, headdim), B and C (*rows, ngroups, dstate), views of the convolution's
    output (*rows, channels)."""
    s = signature
    inner, state = s.nheads * s.headdim, s.ngroups * s.dstate
    x, B, C = torch.split(convolved, [inner, state, state], dim=-1)
    return (
        torch.unflatten(x, -1, (s.nheads, s.headdim)),
        torch.unflatten(B, -1, (s.ngroups, s.dstate)),
        torch.unflatten(C, -1, (s.ngroups, s.dstate)),
    )


def states(signature: Signature, count: int) -> Tensor:
    s = signature
    return meta(count, s.nheads, s.headdim, s.dstate, dtype=DTYPES[s.state_dtype])
