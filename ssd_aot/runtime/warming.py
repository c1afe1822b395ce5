"""Calling every signature before the first request, so that nothing is left to its first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch

from ssd_aot.signatures import Signature

SHORT_TOKENS = 128
LONG_TOKENS = 1024
"""Longer than what one sequence walks: reaches the segmented form where a signature has it."""

REHEARSED = 8
"""Short calls kept for the end, with their tensors: as many as a shipped model has signatures."""

REHEARSALS = 8
"""Rounds at the end, after which the first request's call finds the code for it in the processor's
caches."""


def warm_up(signatures: Sequence[Signature], device: torch.device) -> None:
    """Run batches of each distinct signature, short and long, on uninitialised memory.

    That loads modules, lays out argument frames and lets calls with an engine's usual layouts
    skip their checks from the first one on.
    """
    last: deque[Callable[[], object]] = deque(maxlen=REHEARSED)
    for signature in {replace(s, model="", tp=1, conv_kernel=0): None for s in signatures}:
        for length in reversed(batch_lengths(signature)):
            call = _call(signature, length, device)
            # The second and third call go the short way, which serving will go.
            for _ in range(3):
                call()
        last.append(call)
    rehearse(last, device)


def rehearse(calls: Iterable[Callable[[], object]], device: torch.device) -> None:
    """Make the calls again and again, each as the first two layers of a step do."""
    module = torch.get_device_module(device)
    for _ in range(REHEARSALS):
        for call in calls:
            # The first goes the way of new sizes, the second that of the layers that follow.
            call()
            call()
            module.synchronize(device)


def batch_lengths(signature: Signature) -> tuple[int, int]:
    """Tokens a sequence of a short and of a long batch."""
    longest = max(1, min(LONG_TOKENS, signature.max_num_batched_tokens) // signature.num_seqs[0])
    unit = signature.chunk_size if signature.lengths == "chunk_aligned" else 1
    # Not a single token: torch gives dimensions of size 1 other strides, another layout.
    short = max(unit, min(SHORT_TOKENS, longest) // unit * unit)
    return short, max(short, longest // unit * unit)


def _call(signature: Signature, length: int, device: torch.device) -> Callable[[], object]:
    # Imported here: only a warm load needs it.
    from ssd_aot.problems import make_problem

    lengths = (length,) * signature.num_seqs[0]
    return make_problem(signature, lengths, device=device, fill=False).call()
