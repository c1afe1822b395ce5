"""TensorRT-LLM: packed sequences chunked as one row, as `Mamba2Mixer` calls it, and plain rows.

Facts of shapes and views are those of 1.2 and of main after it (`modules/mamba/mamba2_mixer.py`,
`mamba2_metadata.py`). Prefill tokens come first in a batch. A, D and dt_bias are fp32, whatever
dtype the model has; a signature whose param_dtype is the model's stands for that too.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from ssd_aot.engines.chunked_batches import PackedBatch, RowBatch, packed_batches, row_batches
from ssd_aot.engines.engine import Call
from ssd_aot.engines.operation_modules import operation_module, pass_over, scan_module
from ssd_aot.engines.shapes import convolution_input, indices, meta, projected, split, states
from ssd_aot.errors import HostError
from ssd_aot.problems import DTYPES
from ssd_aot.signatures import Signature
from ssd_aot.targets import Target

PASSED_OVER = ("tensorrt_llm", "tensorrt_llm._torch", "tensorrt_llm._torch.modules")
MODULES = "tensorrt_llm._torch.modules.mamba"
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
        pass_over(PASSED_OVER)
        module = scan_module(f"{MODULES}.ssd_combined")
        self._operation = module.mamba_chunk_scan_combined
        if "out" not in inspect.signature(self._operation).parameters:
            raise _too_old()
        self._chunk_indices = _of_all_counts(operation_module(f"{MODULES}.mamba2_metadata"))
        # From here on the convolution's output is split into three tensors of their own.
        self._dense = importlib.util.find_spec(f"{MODULES}.fuse_elementwise_ops") is not None
        with mock.patch.object(module, FLASHINFER, _past_triton, create=True):
            yield
        self._operation = self._chunk_indices = None

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
        return ""

    def calls(self, signature: Signature) -> Iterator[Call]:
        if signature.is_cont_batched:
            for batch in packed_batches(signature):
                yield partial(self._packed, signature, batch)
        else:
            for rows in row_batches(signature):
                yield partial(self._rows, signature, rows)

    def _packed(self, s: Signature, batch: PackedBatch) -> None:
        projection = projected(s, batch.tokens)
        pieces: dict[str, Tensor] = {}
        if s.has_initstates:
            pieces = dict(zip(("chunk_indices", "chunk_offsets"), self._pieces(batch), strict=True))
        x, B, C = self._split(s, projection)
        out = meta(batch.tokens, s.nheads * s.headdim, dtype=DTYPES[s.dtype])
        self._call(
            s,
            x=x,
            dt=projection[:, -s.nheads :].unsqueeze(0),
            B=B,
            C=C,
            out=out.view(1, batch.tokens, -1, s.headdim),
            initial_states=states(s, batch.num_seqs) if s.has_initstates else None,
            seq_idx=indices(batch.tokens).unsqueeze(0),
            cu_seqlens=indices(batch.num_seqs + 1),
            return_varlen_states=True,
            return_final_states=False,
            **pieces,
        )

    def _pieces(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """The engine's own kernel tells which pieces there are, from lengths that are real."""
        if self._chunk_indices is None:
            return indices(batch.pieces), indices(batch.pieces)
        ends = torch.tensor(batch.ends, dtype=torch.int32)
        found: tuple[Tensor, Tensor] = self._chunk_indices(
            ends,
            batch.chunk_size,
            total_seqlens=batch.tokens,
            extra_chunks=batch.pieces - batch.chunks,
        )
        return found

    def _split(self, s: Signature, projection: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x, B and C, (1, tokens, …)."""
        # The convolution works in place, with tokens last.
        into = convolution_input(s, projection).transpose(0, 1).contiguous()
        views = split(s, into.transpose(0, 1).unsqueeze(0))
        if not self._dense:
            return views
        x, B, C = (meta(*view.shape, dtype=view.dtype) for view in views)
        return x, B, C

    def _rows(self, s: Signature, batch: RowBatch) -> None:
        shape, dtype = (batch.rows, batch.tokens), DTYPES[s.dtype]
        self._call(
            s,
            x=meta(*shape, s.nheads, s.headdim, dtype=dtype),
            dt=meta(*shape, s.nheads, dtype=dtype),
            B=meta(*shape, s.ngroups, s.dstate, dtype=dtype),
            C=meta(*shape, s.ngroups, s.dstate, dtype=dtype),
            out=meta(*shape, s.nheads, s.headdim, dtype=dtype),
            initial_states=states(s, batch.rows) if s.has_initstates else None,
            return_final_states=True,
        )

    def _call(self, s: Signature, **named: Any) -> None:
        self._operation(
            A=meta(s.nheads, dtype=torch.float32),
            chunk_size=s.chunk_size,
            D=meta(s.nheads, dtype=torch.float32),
            z=None,
            dt_bias=meta(s.nheads, dtype=torch.float32),
            dt_softplus=True,
            dt_limit=(0.0, float("inf")),
            state_dtype=DTYPES[s.state_dtype],
            **named,
        )


def _of_all_counts(metadata: Any) -> Any:
    """What computes the pieces, or None where it takes their number as a constexpr: then every
    batch compiles that kernel anew, and no bundle holds them all."""
    kernel = metadata._cu_seqlens_triton_kernel
    constexprs = {parameter.name for parameter in kernel.params if parameter.is_constexpr}
    if constexprs & {"num_seqs", "N"}:
        return None
    return metadata.cu_seqlens_to_chunk_indices_offsets_triton


def _past_triton(*_: Any, **__: Any) -> None:
    raise HostError(
        "TensorRT-LLM runs this geometry past Triton on this GPU",
        where=f"{MODULES}.ssd_combined",
        found="FlashInfer's own kernel",
        wanted="kernels of Triton's, which a bundle can hold",
        mend="nothing is to be built for it; exclude the model",
    )


def _too_old() -> HostError:
    return HostError(
        "this TensorRT-LLM is older than those that are known",
        where=f"{MODULES}.ssd_combined",
        found="an operation that makes its own output",
        wanted="TensorRT-LLM 1.2 or newer",
        mend="install a newer release, or build the builtin kernels (--source builtin)",
    )


ENGINE = TensorRtLlm()
