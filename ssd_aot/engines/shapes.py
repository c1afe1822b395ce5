"""A problem's values in the tensors that engines' mixers make: views of one projection and of one
convolution, from their first row on. On the meta device they are shapes alone."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ssd_aot.engines.chunked_batches import pieces_of
from ssd_aot.problems import Problem
from ssd_aot.serving_tensors import DTYPES, indices
from ssd_aot.signatures import Signature


def projected(signature: Signature, *rows: int, device: torch.device) -> Tensor:
    """The input projection, (*rows, z, x, B, C, dt)."""
    s = signature
    width = 2 * s.nheads * s.headdim + 2 * s.ngroups * s.dstate + s.nheads
    return torch.empty(*rows, width, dtype=DTYPES[s.dtype], device=device)


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


def filled(problem: Problem, views: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The views with the problem's values of those names written into them. Packed values
    (tokens, …) go into views (tokens, …) and into those of one row, (1, tokens, …)."""
    for name, view in views.items():
        view.copy_(getattr(problem, name))
    return dict(views)


def unwritten(problem: Problem) -> Tensor:
    """A tensor for the operation's output, (tokens, nheads * headdim) over all rows, all NaN."""
    s = problem.signature
    return torch.full(
        (sum(problem.lengths), s.nheads * s.headdim), float("nan"), dtype=DTYPES[s.dtype],
        device=problem.x.device,
    )  # fmt: skip


def owners(problem: Problem) -> Tensor:
    """The sequence of each token of a packed problem, (tokens,)."""
    ends = problem.cu_seqlens[1:]
    tokens = torch.arange(sum(problem.lengths), dtype=ends.dtype, device=ends.device)
    return torch.bucketize(tokens, ends, right=True, out_int32=True)


def pieces(problem: Problem) -> tuple[Tensor, Tensor]:
    """See `pieces_of`, for the problem's sequences packed in one row: the chunks, and the tokens
    in them, (pieces,) each."""
    found = pieces_of(problem.lengths, problem.signature.chunk_size)
    chunks, tokens = (indices(values, problem.x.device) for values in zip(*found, strict=True))
    return chunks, tokens
