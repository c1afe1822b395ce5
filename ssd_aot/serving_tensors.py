"""The tensors of a call as engines lay them out: caches of states, and the chunks of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd_aot.signatures import Signature

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


@dataclass(frozen=True)
class Chunks:
    """The caller's chunks as an engine's scheduler makes them: `ends` (chunks + 1,), `last`
    (sequences,) the index of each sequence's last chunk, `owner` (chunks,) its sequence."""

    ends: Tensor
    last: Tensor
    owner: Tensor

    @classmethod
    def of(cls, lengths: Sequence[int], chunk_size: int, device: torch.device) -> Chunks:
        """Each sequence cut from its first token on."""
        ends, last, owner = [0], [], []
        for sequence, length in enumerate(lengths):
            for start in range(0, length, chunk_size):
                ends.append(ends[-1] + min(chunk_size, length - start))
                owner.append(sequence)
            last.append(len(ends) - 2)
        return cls(*(indices(values, device) for values in (ends, last, owner)))


def indices(values: Sequence[int], device: torch.device) -> Tensor:
    """(values,) int32; on the meta device of that size alone."""
    if device.type == "meta":
        return torch.empty(len(values), dtype=torch.int32, device=device)
    return torch.tensor(values, dtype=torch.int32, device=device)


def state_cache(signature: Signature, slots: int, device: torch.device) -> Tensor:
    """Uninitialised states (slots, nheads, headdim, dstate)."""
    s = signature
    odd = 1 if s.layout == "unaligned" else 0
    shape = (slots, s.nheads, s.headdim, s.dstate + odd)
    return torch.empty(shape, dtype=DTYPES[s.state_dtype], device=device)[..., odd:]


def paged_state_cache(signature: Signature, slots: int, device: torch.device) -> Tensor:
    """As `state_cache`, each slot behind a column of the convolution's state."""
    s = signature
    odd = 1 if s.layout == "unaligned" else 0
    channels = s.nheads * s.headdim + 2 * s.ngroups * s.dstate
    dtype = DTYPES[s.state_dtype]
    column = channels * DTYPES[s.dtype].itemsize // dtype.itemsize
    pages = torch.empty(
        slots, column + s.nheads * s.headdim * (s.dstate + odd), dtype=dtype, device=device
    )
    return pages[:, column:].view(slots, s.nheads, s.headdim, s.dstate + odd)[..., odd:]
