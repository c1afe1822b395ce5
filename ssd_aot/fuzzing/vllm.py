"""vLLM's operation under the fuzzer, called as its mixer calls it, on tensors without memory.

For a process of its own, in which vLLM was imported under a stand-in GPU while launches are
captured. The views are those of `fuzzing.builtin`, which knows nothing of the planner's.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from ssd_aot.bundle.manifest import TargetEntry
from ssd_aot.fuzzing.batch import Batch
from ssd_aot.fuzzing.builtin import (
    TORCH_DTYPES,
    indices,
    inputs,
    output,
    slots_in_table,
    state_cache,
)
from ssd_aot.fuzzing.promises import Deployment
from ssd_aot.launches import Launch
from ssd_aot.triton_compat import CapturedLaunch

SERVING = "serving"
CHECKPOINTS = "serving, checkpoints"


class VllmLaunchCode:
    """Runs `mamba_chunk_scan_combined_varlen` of vLLM; `captured` is told of each launch."""

    def __init__(self, operation: Any) -> None:
        self._operation = operation
        self._accepted = inspect.signature(operation).parameters
        self._seen: dict[CapturedLaunch, None] = {}

    def captured(self, launch: CapturedLaunch) -> None:
        self._seen[launch] = None

    def calls(self, deployment: Deployment) -> Sequence[str]:
        return (CHECKPOINTS,) if deployment.axes["intermediate_states"] else (SERVING,)

    def launches(self, batch: Batch, target: TargetEntry) -> Sequence[Launch]:
        self._seen.clear()
        self._run(batch)
        return [found.launch for found in self._seen]

    def _run(self, batch: Batch) -> None:
        axes, count, chunks = batch.deployment.axes, len(batch.sequences), batch.chunks
        # The convolution runs on the prefill's rows alone, and indices are int32.
        own = batch.with_memory(shared_rows=False, wide_indices=False)
        given = inputs(own, (own.tokens,))
        given.update(
            chunk_size=axes["chunk_size"],
            dt_softplus=axes["dt_softplus"],
            dt_limit=(0.0, float("inf")),
            state_dtype=TORCH_DTYPES[axes["state_dtype"]],
            cu_seqlens=indices(own, count + 1),
            cu_chunk_seqlens=indices(own, chunks + 1),
            last_chunk_indices=indices(own, count),
            seq_idx=indices(own, chunks),
            out=output(own),
            return_intermediate_states=batch.call == CHECKPOINTS,
        )
        if batch.call == SERVING and "final_states_out" in self._accepted:
            given.update(
                final_states_out=state_cache(own), final_state_indices=slots_in_table(own)
            )
        self._operation(**given)
