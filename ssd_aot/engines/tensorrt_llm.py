"""TensorRT-LLM: packed sequences chunked as one row, as `Mamba2Mixer` calls it, and plain rows.

Facts of shapes and views are those of 1.2 and of main after it (`modules/mamba/mamba2_mixer.py`,
`mamba2_metadata.py`). Prefill tokens come first in a batch. A, D and dt_bias are fp32, whatever
dtype the model has; a signature whose param_dtype is the model's stands for that too.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from ssd_aot.engines.chunked_batches import packed_batches, row_batches
from ssd_aot.engines.engine import Call
from ssd_aot.engines.operation_modules import operation_module, pass_over, scan_module
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
from ssd_aot.errors import HostError
from ssd_aot.problems import Problem, Results
from ssd_aot.serving_tensors import indices
from ssd_aot.signatures import Signature
from ssd_aot.targets import Target

PASSED_OVER = ("tensorrt_llm", "tensorrt_llm._torch", "tensorrt_llm._torch.modules")
MODULES = "tensorrt_llm._torch.modules.mamba"
OPERATION, METADATA = f"{MODULES}.ssd_combined", f"{MODULES}.mamba2_metadata"
FLASHINFER = "_mamba_chunk_scan_flashinfer_fwd"


class TensorRtLlm:
    name = "tensorrt_llm"
    package = "tensorrt_llm"

    def __init__(self) -> None:
        self._operation: Any = None
        self._chunk_indices: Any = None
        self._dense = False

    @contextmanager
    def imported(self, target: Target) -> Iterator[None]:
        before = self._operation, self._chunk_indices, self._dense
        pass_over(PASSED_OVER)
        module = scan_module(OPERATION)
        if "out" not in inspect.signature(module.mamba_chunk_scan_combined).parameters:
            raise _too_old()
        self._take(module, operation_module(METADATA))
        try:
            with mock.patch.object(module, FLASHINFER, _past_triton, create=True):
                yield
        finally:
            self._operation, self._chunk_indices, self._dense = before

    def adopt(self) -> bool:
        module, metadata = sys.modules.get(OPERATION), sys.modules.get(METADATA)
        # A module that is being imported does not have them yet.
        there = hasattr(module, "mamba_chunk_scan_combined") and hasattr(
            metadata, "cu_seqlens_to_chunk_indices_offsets_triton"
        )
        if there:
            self._take(module, metadata)
        return there

    def _take(self, module: Any, metadata: Any) -> None:
        self._operation = module.mamba_chunk_scan_combined
        self._chunk_indices = _of_all_counts(metadata)
        # From here on the convolution's output is split into three tensors of their own.
        self._dense = importlib.util.find_spec(f"{MODULES}.fuse_elementwise_ops") is not None

    def refusal(self, signature: Signature) -> str:
        if signature.z or signature.seq_idx or signature.layout != "engine":
            return "TensorRT-LLM passes no z, makes seq_idx itself, and passes its own views"
        if signature.dt_dtype != signature.dtype:
            return "TensorRT-LLM's mixer slices dt out of the projection: it has the dtype of x"
        if signature.param_dtype not in (signature.dtype, "fp32"):
            return "TensorRT-LLM keeps D and dt_bias in fp32"
        if signature.D != "head" or not signature.dt_bias or not signature.dt_softplus:
            return "TensorRT-LLM's mixer passes D a head, dt_bias and dt_softplus always"
        if signature.intermediate_states:
            return "TensorRT-LLM gives no intermediate states"
        rows = not signature.is_cont_batched and signature.num_seqs[1] > 1
        if rows and signature.has_initstates:
            return "TensorRT-LLM's scan takes initial states of packed sequences or of one row"
        return ""

    def calls(self, signature: Signature) -> Iterator[Call]:
        batches = packed_batches if signature.is_cont_batched else row_batches
        for batch in batches(signature):
            served = ServingBatch(signature, batch.lengths, decode_tokens=0)
            yield partial(call_without_memory, self, served)

    def prepare(self, batch: ServingBatch, problem: Problem) -> PreparedCall:
        s = problem.signature
        assert problem.D is not None and problem.dt_bias is not None
        inputs, told = self._packed(problem) if s.is_cont_batched else self._rows(problem)
        out = unwritten(problem).view(*inputs["x"].shape)
        run = partial(
            self._operation,
            **inputs,
            A=problem.A,
            chunk_size=s.chunk_size,
            D=problem.D.float(),
            z=None,
            dt_bias=problem.dt_bias.float(),
            initial_states=problem.initial_states,
            dt_softplus=True,
            dt_limit=problem.dt_limit,
            out=out,
            state_dtype=problem.state_dtype,
            **told,
        )
        return PreparedCall(run, partial(Results, out.flatten(0, 1)))

    def _packed(self, problem: Problem) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """x, dt, B and C in one row, and what tells its sequences apart."""
        s = problem.signature
        projection = projected(s, problem.x.shape[0], device=problem.x.device)
        # The convolution works in place, with tokens last.
        into = convolution_input(s, projection).transpose(0, 1).contiguous()
        x, B, C = split(s, into.transpose(0, 1).unsqueeze(0))
        if self._dense:
            x, B, C = (view.new_empty(view.shape) for view in (x, B, C))
        dt = projection[:, -s.nheads :].unsqueeze(0)
        told: dict[str, Any] = {
            "seq_idx": owners(problem).unsqueeze(0),
            "cu_seqlens": problem.cu_seqlens,
            "return_varlen_states": True,
            "return_final_states": False,
        }
        if s.has_initstates:
            told["chunk_indices"], told["chunk_offsets"] = self._pieces(problem)
        return filled(problem, {"x": x, "dt": dt, "B": B, "C": C}), told

    def _pieces(self, problem: Problem) -> tuple[Tensor, Tensor]:
        """The engine's own kernel tells which pieces there are, from ends of sequences that are
        real on the meta device too."""
        own = pieces(problem)
        if self._chunk_indices is None:
            return own
        place, size = problem.x.device, problem.signature.chunk_size
        ends = tuple(accumulate(problem.lengths, initial=0))
        found: tuple[Tensor, Tensor] = self._chunk_indices(
            indices(ends, torch.device("cpu") if place.type == "meta" else place),
            size,
            total_seqlens=ends[-1],
            extra_chunks=len(own[0]) - -(-ends[-1] // size),
        )
        return found

    def _rows(self, problem: Problem) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """x, dt, B and C a sequence a row; with initial states the scan wants to be told of the one
        row's pieces."""
        views = {name: getattr(problem, name) for name in ("x", "dt", "B", "C")}
        dense = {name: view.new_empty(view.shape) for name, view in views.items()}
        told: dict[str, Any] = {"return_final_states": True}
        if problem.signature.has_initstates:
            told["seq_idx"] = owners(problem).unsqueeze(0)
            told["chunk_indices"], told["chunk_offsets"] = pieces(problem)
        return filled(problem, dense), told


def _of_all_counts(metadata: Any) -> Any:
    """What computes the pieces, or None where it takes their number as a constexpr: then every
    batch compiles that kernel anew, and no bundle holds them all."""
    parameters = inspect.signature(metadata._cu_seqlens_triton_kernel.fn).parameters
    if any("constexpr" in str(parameters[name].annotation) for name in ("num_seqs", "N")):
        return None
    return metadata.cu_seqlens_to_chunk_indices_offsets_triton


def _past_triton(*_: Any, **__: Any) -> None:
    raise HostError(
        "TensorRT-LLM runs this geometry past Triton on this GPU",
        where=OPERATION,
        found="FlashInfer's own kernel",
        wanted="kernels of Triton's, which a bundle can hold",
        mend="nothing is to be built for it; exclude the model",
    )


def _too_old() -> HostError:
    return HostError(
        "this TensorRT-LLM is older than those that are known",
        where=OPERATION,
        found="an operation that makes its own output",
        wanted="TensorRT-LLM 1.2 or newer",
        mend="install a newer release, or build the builtin kernels (--source builtin)",
    )


ENGINE = TensorRtLlm()
