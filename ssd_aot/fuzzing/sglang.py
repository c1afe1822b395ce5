"""SGLang's operation under the fuzzer, called as its mixer calls it.

From SGLang 0.5.23: `MambaMixer2.forward` of `srt/layers/attention/mamba/mamba.py`, `prepare_mixed`
of `mamba2_metadata.py` and `_init_track_ssm_indices` of `hybrid_linear_attn_backend.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import torch

from ssd_aot.engines.sglang import OPERATION
from ssd_aot.fuzzing.batch import Batch
from ssd_aot.fuzzing.operation import SERVING, OperationLaunchCode, is_mixers
from ssd_aot.fuzzing.packed_row import int32, packed_row, pieces
from ssd_aot.fuzzing.promises import Deployment
from ssd_aot.fuzzing.tensors import empty, parameters

ONE_TRACKED = "serving, a state of one sequence tracked"
ALL_TRACKED = "serving, a state of each sequence tracked"
"""The radix cache keeps a state of those sequences that reach one of its positions in a step."""


class SglangLaunchCode(OperationLaunchCode):
    """Runs `mamba_chunk_scan_combined` of the SGLang that this process has imported."""

    def __init__(self) -> None:
        super().__init__()
        self._operation = importlib.import_module(OPERATION).mamba_chunk_scan_combined

    def served(self, deployment: Deployment) -> Deployment | None:
        own = is_mixers(deployment) and deployment.axes["IS_CONT_BATCHED"]
        return deployment if own else None

    def calls(self, deployment: Deployment) -> Sequence[str]:
        tracks = deployment.axes["intermediate_states"]
        return (SERVING, ONE_TRACKED, ALL_TRACKED) if tracks else (SERVING,)

    def run(self, batch: Batch) -> None:
        # A slice of the projection goes to the convolution in Triton, which makes its output like
        # it; the convolution in CUDA is for inputs with the tokens last.
        given = packed_row(batch, torch.empty_like)
        tracked = {ONE_TRACKED: 1, ALL_TRACKED: len(batch.sequences)}.get(batch.call, 0)
        some = batch.initial_states
        self._operation(
            **given,
            **parameters(batch.deployment),
            chunk_indices=int32(pieces(batch)) if some else None,
            chunk_offsets=int32(pieces(batch)) if some else None,
            return_final_states=False,
            return_track_states=True,
            track_seq_idx=empty(tracked, dtype=torch.int64) if tracked else None,
            track_end_locs=empty(tracked, dtype=torch.int64) if tracked else None,
        )
