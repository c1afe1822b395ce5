"""vLLM's operation under the fuzzer, called as its mixer calls it, on tensors without memory.

For a process of its own, in which vLLM was imported under a stand-in GPU while launches are
captured. The views are those of `fuzzing.tensors`, which knows nothing of the planner's.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from ssd_aot.bundle.manifest import TargetEntry
from ssd_aot.fuzzing.batch import Batch
from ssd_aot.fuzzing.promises import Deployment
from ssd_aot.fuzzing.tensors import TORCH_DTYPES, empty, indices, inputs, output, state_cache
from ssd_aot.launches import Launch
from ssd_aot.triton_compat import CapturedLaunch

MIXER: Mapping[str, Any] = {
    "IS_CONT_BATCHED": True, "D": "head", "z": False, "dt_bias": True, "dt_softplus": True,
    "seq_idx": False, "layout": "engine",
}  # fmt: skip
"""What vLLM's mixer passes always; it serves no deployment with anything else."""

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
        axes = deployment.axes
        own = all(axes[name] == value for name, value in MIXER.items())
        if not own or axes["dt_dtype"] != axes["dtype"]:
            return ()
        return (CHECKPOINTS,) if deployment.axes["intermediate_states"] else (SERVING,)

    def launches(self, batch: Batch, target: TargetEntry) -> Sequence[Launch]:
        self._seen.clear()
        self._run(batch)
        return [found.launch for found in self._seen]

    def _run(self, batch: Batch) -> None:
        axes, count, chunks = batch.deployment.axes, len(batch.sequences), batch.chunks
        # The convolution runs on the prefill's rows alone, and indices are int32.
        memory = batch.memory._replace(shared_rows=False, wide_indices=False)
        own = replace(batch, memory=memory)
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
            # A table of slots, a column for each speculative token, behind the rows that decode.
            table = empty(batch.decode_tokens + count, 1 + memory.drafts, dtype=torch.int32)
            slots = table[batch.decode_tokens :, 0]
            given.update(final_states_out=state_cache(own), final_state_indices=slots)
        self._operation(**given)
