"""An engine's operation called under every signature, so that nothing is left to its first call.

Looking kernels up is the smaller part of that: an engine's own launch code imports, parses and
remembers at its first call too, and Triton spells a key for each class of arguments.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product

import torch

from ssd_aot.runtime.warming import REHEARSED, batch_lengths, rehearse
from ssd_aot.signatures import Signature

DECODE_TOKENS = (1, 0)
"""Rows before a batch's views, which may be on 16 bytes or not."""


def warm_up_engine(name: str, signatures: Sequence[Signature], device: torch.device) -> None:
    """Run batches of each distinct signature through the operation of the engine of that name, as
    this process has imported it; nothing where it has not.

    The batches are of the fewest sequences that the signature has, short and long, of multiples of
    16 tokens and of others, on uninitialised memory. In strict mode a launch that the bundle lacks
    raises MissingLaunchError.
    """
    # Imported here: only a warm load needs them.
    from ssd_aot.engines.engine import ENGINES, engine
    from ssd_aot.engines.serving_calls import ServingBatch

    if name not in ENGINES:  # A recording is of any program.
        return
    source = engine(name)
    if not source.adopt():
        return
    last: deque[Callable[[], object]] = deque(maxlen=REHEARSED)
    for signature in {replace(s, model="", tp=1): None for s in signatures}:
        for lengths, before in product(_batches(signature), DECODE_TOKENS):
            batch = ServingBatch(signature, lengths, before)
            run = source.prepare(batch, batch.problem(device, fill=False)).run
            run()
        last.append(run)
    # Python would come to it in one of the first calls, which would take 5 ms longer.
    gc.collect()
    rehearse(last, device)


def _batches(signature: Signature) -> Iterator[tuple[int, ...]]:
    """Tokens of the sequences, most first."""
    count = signature.num_seqs[0]
    for length in reversed(batch_lengths(signature)):
        yield (length,) * count
        if signature.lengths == "chunk_aligned" or length == 1:
            continue
        if signature.is_cont_batched:
            yield (*(length,) * (count - 1), length - 1)
        else:
            yield (length - 1,) * count
