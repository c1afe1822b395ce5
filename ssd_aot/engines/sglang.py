"""SGLang: packed sequences chunked as one row, as `MambaMixer2` calls it.

Facts of shapes and views are those of SGLang 0.5.23 (`layers/attention/mamba/mamba.py` and
`mamba2_metadata.py`). Prefill tokens come first in a batch, so no view begins behind others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from ssd_aot.engines.chunked_batches import PackedBatch, packed_batches
from ssd_aot.engines.engine import Call
from ssd_aot.engines.operation_modules import pass_over, scan_module
from ssd_aot.engines.shapes import convolution_input, indices, meta, projected, split, states
from ssd_aot.problems import DTYPES
from ssd_aot.signatures import Signature
from ssd_aot.targets import Target

PASSED_OVER = (
    "sglang",
    "sglang.kernels",
    "sglang.kernels.ops",
    "sglang.kernels.ops.attention",
    "sglang.kernels.ops.mamba",
    "sglang.srt",
    "sglang.srt.utils",
)
OPERATION = "sglang.kernels.ops.mamba.triton_ops.ssd_combined"


class Sglang:
    name = "sglang"
    package = "sglang"

    def __init__(self) -> None:
        self._operation: Any = None

    @contextmanager
    def imported(self, target: Target) -> Iterator[None]:
        pass_over(PASSED_OVER)
        self._operation = scan_module(OPERATION).mamba_chunk_scan_combined
        yield
        self._operation = None

    def refusal(self, signature: Signature) -> str:
        if not signature.is_cont_batched:
            return "SGLang calls with packed sequences alone (IS_CONT_BATCHED true)"
        if signature.z or signature.seq_idx or signature.layout != "engine":
            return "SGLang's mixer passes no z, makes seq_idx itself, and passes its own views"
        if signature.dt_dtype != signature.dtype:
            return "SGLang's mixer slices dt out of the projection: it has the dtype of x"
        if signature.D != "head" or not signature.dt_bias or not signature.dt_softplus:
            return "SGLang's mixer passes D a head, dt_bias and dt_softplus always"
        return ""

    def calls(self, signature: Signature) -> Iterator[Call]:
        for batch in packed_batches(signature):
            yield partial(self._call, signature, batch)

    def _call(self, s: Signature, batch: PackedBatch) -> None:
        parameters = DTYPES[s.param_dtype]
        projection = projected(s, batch.tokens)
        # The convolution's output is made like its input, which is a slice with channels last.
        convolved = torch.empty_like(convolution_input(s, projection).transpose(0, 1))
        x, B, C = split(s, convolved.transpose(0, 1).unsqueeze(0))
        out = meta(batch.tokens, s.nheads * s.headdim, dtype=DTYPES[s.dtype])
        # A tracked position is one where a state is kept for prefix caching.
        tracked = indices(batch.num_seqs).long() if s.intermediate_states else None
        self._operation(
            x,
            projection[:, -s.nheads :].unsqueeze(0),
            meta(s.nheads, dtype=torch.float32),
            B,
            C,
            chunk_size=s.chunk_size,
            D=meta(s.nheads, dtype=parameters),
            z=None,
            dt_bias=meta(s.nheads, dtype=parameters),
            seq_idx=indices(batch.tokens).unsqueeze(0),
            chunk_indices=indices(batch.pieces) if s.has_initstates else None,
            chunk_offsets=indices(batch.pieces) if s.has_initstates else None,
            cu_seqlens=indices(batch.num_seqs + 1),
            initial_states=states(s, batch.num_seqs) if s.has_initstates else None,
            return_varlen_states=True,
            return_track_states=True,
            track_seq_idx=tracked,
            track_end_locs=tracked,
            dt_softplus=True,
            dt_limit=(0.0, float("inf")),
            out=out.view(1, batch.tokens, -1, s.headdim),
            state_dtype=DTYPES[s.state_dtype],
        )


ENGINE = Sglang()
