"""SGLang: packed sequences chunked as one row, as `MambaMixer2` calls it.

Facts of shapes and views are those of SGLang 0.5.23 (`layers/attention/mamba/mamba.py` and
`mamba2_metadata.py`). Prefill tokens come first in a batch, so no view begins behind others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ssd_aot.engines.chunked_batches import packed_batches
from ssd_aot.engines.engine import Call
from ssd_aot.engines.operation_modules import OperationEngine, pass_over, scan_module
from ssd_aot.engines.serving_calls import PreparedCall, ServingBatch, call_without_memory
from ssd_aot.engines.shapes import (
    convolution_input,
    filled,
    owners,
    pieces,
    projected,
    split,
    unwritten,
)
from ssd_aot.problems import Problem, Results
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


class Sglang(OperationEngine):
    name = "sglang"
    package = "sglang"

    @contextmanager
    def imported(self, target: Target) -> Iterator[None]:
        pass_over(PASSED_OVER)
        with self._holding(scan_module(OPERATION).mamba_chunk_scan_combined):
            yield

    def adopt(self) -> bool:
        return self._adopt(OPERATION, "mamba_chunk_scan_combined")

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
            served = ServingBatch(signature, batch.lengths, decode_tokens=0)
            yield partial(call_without_memory, self, served)

    def prepare(self, batch: ServingBatch, problem: Problem) -> PreparedCall:
        s = problem.signature
        inputs = _inputs(problem)
        out = unwritten(problem).view(1, -1, s.nheads, s.headdim)
        cuts = pieces(problem) if s.has_initstates else (None, None)
        call = partial(
            self._operation,
            inputs["x"],
            inputs["dt"],
            problem.A,
            inputs["B"],
            inputs["C"],
            chunk_size=s.chunk_size,
            D=problem.D,
            z=None,
            dt_bias=problem.dt_bias,
            seq_idx=owners(problem).unsqueeze(0),
            chunk_indices=cuts[0],
            chunk_offsets=cuts[1],
            cu_seqlens=problem.cu_seqlens,
            initial_states=problem.initial_states,
            return_varlen_states=True,
            return_track_states=True,
            dt_softplus=True,
            dt_limit=problem.dt_limit,
            out=out,
            state_dtype=problem.state_dtype,
        )
        if not s.intermediate_states:
            run = partial(call, track_seq_idx=None, track_end_locs=None)
            return PreparedCall(run, partial(_final, out[0]))
        sequences, ends = problem.chunks.owner.long(), problem.chunks.ends[1:].long()
        every = partial(call, track_seq_idx=sequences, track_end_locs=ends)
        tracked = _tracked(problem)
        run = partial(call, track_seq_idx=sequences[tracked], track_end_locs=ends[tracked])
        return PreparedCall(run, partial(_after_each_chunk, out[0], every))


def _inputs(problem: Problem) -> dict[str, Tensor]:
    """x, dt, B and C in one row."""
    s = problem.signature
    projection = projected(s, problem.x.shape[0], device=problem.x.device)
    # The convolution's output is made like its input, which is a slice with channels last.
    convolved = torch.empty_like(convolution_input(s, projection).transpose(0, 1))
    x, B, C = split(s, convolved.transpose(0, 1).unsqueeze(0))
    dt = projection[:, -s.nheads :].unsqueeze(0)
    return filled(problem, {"x": x, "dt": dt, "B": B, "C": C})


def _final(out: Tensor, returned: tuple[Tensor, ...]) -> Results:
    return Results(out, returned[1])


def _tracked(problem: Problem) -> list[int]:
    """The chunks at whose ends a layer keeps states for prefix caching: one a sequence, the last
    but one where it has several."""
    counts = [-(-length // problem.signature.chunk_size) for length in problem.lengths]
    firsts = accumulate(counts, initial=0)
    return [first + max(0, count - 2) for first, count in zip(firsts, counts, strict=False)]


def _after_each_chunk(out: Tensor, every: Callable[[], Any], returned: object) -> Results:
    """The launch that keeps those states can keep any: so that all are judged, the operation is
    called once more."""
    _, _, tracked = every()
    return Results(out, tracked[0])


ENGINE = Sglang()
