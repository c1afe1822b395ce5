"""Calling every signature once before the first request, so that nothing is left to its first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ssd_aot.signatures import Signature

SHORT_TOKENS = 128
LONG_TOKENS = 1024
"""Longer than what one sequence walks: reaches the segmented form where a signature has it."""


def warm_up(signatures: Sequence[Signature], device: int) -> None:
    """Run one short and one long batch of each distinct signature on uninitialised memory.

    That loads modules, lays out argument frames and lets calls with an engine's usual layouts
    skip their checks from the first one on.
    """
    # Imported here: only a warm load needs it.
    from ssd_aot.problems import make_problem

    distinct = {replace(s, model="", tp=1, conv_kernel=0): None for s in signatures}
    for signature in distinct:
        count = signature.num_seqs[0]
        longest = max(1, min(LONG_TOKENS, signature.max_num_batched_tokens) // count)
        unit = signature.chunk_size if signature.lengths == "chunk_aligned" else 1
        # Not a single token: torch gives dimensions of size 1 other strides, another layout.
        short = max(unit, min(SHORT_TOKENS, longest) // unit * unit)
        for length in (short, max(short, longest // unit * unit)):
            problem = make_problem(
                signature, (length,) * count, device=torch.device("cuda", device), fill=False
            )
            # The second and third call go the short way, which serving will go.
            for _ in range(3):
                problem.run()
    torch.cuda.synchronize(device)
