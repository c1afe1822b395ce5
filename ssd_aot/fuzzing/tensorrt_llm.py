"""TensorRT-LLM's operation under the fuzzer, called as its mixer calls it, and on plain rows.

From TensorRT-LLM 1.2 and main after it: `Mamba2Mixer.forward` of `modules/mamba/mamba2_mixer.py`
and `Mamba2Metadata.prepare` of `mamba2_metadata.py`.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ssd_aot.engines.tensorrt_llm import MODULES
from ssd_aot.fuzzing.batch import Batch
from ssd_aot.fuzzing.operation import SERVING, OperationLaunchCode, is_mixers
from ssd_aot.fuzzing.packed_row import constants, cuts, int32, packed_row, pieces
from ssd_aot.fuzzing.promises import Deployment
from ssd_aot.fuzzing.tensors import TORCH_DTYPES, empty, parameters, states

ROWS = "rows"
ROWS_FINAL = "rows, final states"


class TensorRtLlmLaunchCode(OperationLaunchCode):
    """Runs `mamba_chunk_scan_combined` of the TensorRT-LLM that this process has imported, and
    what tells the pieces of chunks before it."""

    def __init__(self) -> None:
        super().__init__()
        self._operation = importlib.import_module(
            f"{MODULES}.ssd_combined"
        ).mamba_chunk_scan_combined
        metadata = importlib.import_module(f"{MODULES}.mamba2_metadata")
        self._tell_pieces = metadata.cu_seqlens_to_chunk_indices_offsets_triton
        # Where counts are constexprs too, each batch has a kernel of its own, and no plan all.
        self._tells = {
            parameter.name
            for parameter in metadata._cu_seqlens_triton_kernel.params
            if parameter.is_constexpr
        } == {"chunk_size", "BLOCK_SIZE"}
        self._splits = importlib.util.find_spec(f"{MODULES}.fuse_elementwise_ops") is not None

    def served(self, deployment: Deployment) -> Deployment | None:
        axes = deployment.axes
        # The parameters are fp32 whatever the model is; a spec may say so or say nothing.
        own = is_mixers(deployment) and axes["param_dtype"] in (axes["dtype"], "fp32")
        if not own or axes["intermediate_states"]:
            return None
        reaches = deployment.reaches
        if not axes["IS_CONT_BATCHED"]:
            # The scan asserts that rows with initial states are one (`_chunk_scan_fwd`).
            reaches = tuple(r for r in reaches if not r.initial_states or r.high == 1)
        return replace(deployment, reaches=reaches) if reaches else None

    def calls(self, deployment: Deployment) -> Sequence[str]:
        return (SERVING,) if deployment.axes["IS_CONT_BATCHED"] else (ROWS, ROWS_FINAL)

    def run(self, batch: Batch) -> None:
        given = _rows(batch) if batch.call != SERVING else self._packed(batch)
        self._operation(**given, **parameters(batch.deployment, torch.float32))

    def _packed(self, batch: Batch) -> dict[str, Any]:
        # The convolution works in place on a copy with the tokens last.
        given = packed_row(batch, Tensor.contiguous)
        if self._splits:
            # A kernel of its own makes x, B and C of the convolution's output.
            given.update({name: _like(given[name]) for name in ("x", "B", "C")})
        if batch.initial_states:
            indices, offsets = self._pieces(batch)
            given.update(chunk_indices=indices, chunk_offsets=offsets)
        return {**given, "return_final_states": False}

    def _pieces(self, batch: Batch) -> tuple[Tensor, Tensor]:
        if not self._tells:
            return int32(pieces(batch)), int32(pieces(batch))
        told: tuple[Tensor, Tensor] = self._tell_pieces(
            int32(len(batch.sequences) + 1),
            batch.deployment.axes["chunk_size"],
            total_seqlens=batch.tokens,
            extra_chunks=cuts(batch),
        )
        return told


def _rows(batch: Batch) -> dict[str, Any]:
    """The operation called by itself, on tensors of its own, a sequence a row."""
    own, count = batch.deployment, len(batch.sequences)
    lead, dtype = (count, batch.sequences[0].tokens), TORCH_DTYPES[own.axes["dtype"]]
    heads, groups = (own.nheads, own.model.headdim), (own.ngroups, own.model.dstate)
    return {
        "x": empty(*lead, *heads, dtype=dtype),
        "dt": empty(*lead, own.nheads, dtype=dtype),
        "B": empty(*lead, *groups, dtype=dtype),
        "C": empty(*lead, *groups, dtype=dtype),
        "out": empty(*lead, *heads, dtype=dtype),
        "z": None,
        "initial_states": states(batch, count) if batch.initial_states else None,
        "return_final_states": batch.call == ROWS_FINAL,
        **constants(batch),
        **(_one_piece_a_chunk(batch) if batch.initial_states else {}),
    }


def _one_piece_a_chunk(batch: Batch) -> dict[str, Any]:
    """What the scan reads initial states by."""
    tokens = batch.sequences[0].tokens
    chunks = -(-tokens // batch.deployment.axes["chunk_size"])
    return {
        "seq_idx": int32(tokens).unsqueeze(0),
        "chunk_indices": int32(chunks),
        "chunk_offsets": int32(chunks),
    }


def _like(view: Tensor) -> Tensor:
    return empty(*view.shape, dtype=view.dtype)
