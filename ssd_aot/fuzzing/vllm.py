"""vLLM's operation under the fuzzer, called as its mixer calls it."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from dataclasses import replace

import torch

from ssd_aot.engines.vllm import OPERATION
from ssd_aot.fuzzing.batch import Batch
from ssd_aot.fuzzing.operation import SERVING, OperationLaunchCode, is_mixers
from ssd_aot.fuzzing.promises import Deployment
from ssd_aot.fuzzing.tensors import TORCH_DTYPES, empty, indices, inputs, output, state_cache

CHECKPOINTS = "serving, checkpoints"


class VllmLaunchCode(OperationLaunchCode):
    """Runs `mamba_chunk_scan_combined_varlen` of the vLLM that this process has imported."""

    def __init__(self) -> None:
        super().__init__()
        self._operation = importlib.import_module(OPERATION).mamba_chunk_scan_combined_varlen
        self._accepted = inspect.signature(self._operation).parameters

    def served(self, deployment: Deployment) -> Deployment | None:
        own = is_mixers(deployment) and deployment.axes["IS_CONT_BATCHED"]
        return deployment if own else None

    def calls(self, deployment: Deployment) -> Sequence[str]:
        return (CHECKPOINTS,) if deployment.axes["intermediate_states"] else (SERVING,)

    def run(self, batch: Batch) -> None:
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
