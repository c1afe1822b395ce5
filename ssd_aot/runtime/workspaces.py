"""Workspace memory of a device: one piece a stream, reused where the stream's order allows.

Launches on one stream run one after another, so the next call may overwrite what the last one
used. Under CUDA graph capture that does not hold (a replay runs whenever and wherever it is
launched), so a captured call gets memory of its own from the graph's pool.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

ALIGNMENT_BYTES = 256
"""Where each workspace starts inside the one allocation; what torch's own allocator gives."""

KEPT_BYTES = 32 * 2**20
"""Larger workspaces are given back to torch's allocator after the call: a call that needs one runs
for so long on the GPU that the 2.4 us of an allocation are hidden."""


class Workspaces:
    """The kept pieces of one device. The caller holds the device's launch lock."""

    def __init__(self, device: int) -> None:
        self._device = torch.device("cuda", device)
        self._kept: dict[int, tuple[int, int, Tensor]] = {}

    def take(self, size_bytes: int, stream: int) -> tuple[int, Tensor | None]:
        """(address, owner): at least `size_bytes` for launches on `stream`.

        The owner, if there is one, is to be held until the launches are issued.
        """
        kept = self._kept.get(stream)
        if kept is not None and kept[0] >= size_bytes and not _capturing():
            return kept[1], None
        space = torch.empty(size_bytes, dtype=torch.uint8, device=self._device)
        address = space.data_ptr()
        if size_bytes > KEPT_BYTES or _capturing():
            return address, space
        self._kept[stream] = (size_bytes, address, space)
        return address, None


# A torch without CUDA, on which builds run, lacks it.
_capturing: Callable[[], bool] = getattr(torch._C, "_cuda_isCurrentStreamCapturing", bool)


def aligned_up(size_bytes: int) -> int:
    return -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
