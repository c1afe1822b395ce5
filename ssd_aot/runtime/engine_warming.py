"""An engine's operation called under every signature, so that nothing is left to its first call.

Looking kernels up is the smaller part of that: an engine's own launch code imports, parses and
remembers at its first call too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ssd_aot.runtime.warming import batch_lengths, rehearse
from ssd_aot.signatures import Signature


def warm_up_engine(name: str, signatures: Sequence[Signature], device: torch.device) -> None:
    """Run a short and a long batch of each distinct signature through the operation of the engine
    of that name, as this process has imported it; nothing where it has not, and for engines whose
    operation cannot be called from here.

    In strict mode a launch that the bundle lacks raises MissingLaunchError.
    """
    # Imported here: only a warm load needs them.
    from ssd_aot.engines.engine import ENGINES, engine
    from ssd_aot.engines.serving_calls import MeasuredEngine, ServingBatch

    if name not in ENGINES:  # A recording is of any program.
        return
    source = engine(name)
    if not isinstance(source, MeasuredEngine) or not source.adopt():
        return
    calls = []
    for signature in {replace(s, model="", tp=1): None for s in signatures}:
        for length in batch_lengths(signature):
            batch = ServingBatch(signature, (length,) * signature.num_seqs[0], decode_tokens=0)
            calls.append(source.prepare(batch, batch.problem(device)).run)
    rehearse(calls, device)
