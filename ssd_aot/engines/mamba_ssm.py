"""mamba_ssm: rows of equal length, or one row of packed sequences, as `Mamba2` calls it.

Facts of shapes and views are those of mamba_ssm 2.3.2 (`modules/mamba2.py`). The operation is also
called by itself, so D, z, dt_bias and seq_idx are what a signature says.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ssd_aot.engines.chunked_batches import packed_batches, row_batches
from ssd_aot.engines.engine import Call
from ssd_aot.engines.operation_modules import pass_over, scan_module
from ssd_aot.engines.shapes import convolution_input, indices, meta, projected, split, states
from ssd_aot.problems import DTYPES
from ssd_aot.signatures import Signature
from ssd_aot.targets import Target

OPERATION = "mamba_ssm.ops.triton.ssd_combined"


class MambaSsm:
    name = "mamba_ssm"
    package = "mamba_ssm"

    def __init__(self) -> None:
        self._operation: Any = None

    @contextmanager
    def imported(self, target: Target) -> Iterator[None]:
        pass_over(("mamba_ssm", "mamba_ssm.ops"))
        self._operation = scan_module(OPERATION).mamba_chunk_scan_combined
        yield
        self._operation = None

    def refusal(self, signature: Signature) -> str:
        if signature.layout != "engine":
            return "mamba_ssm's mixer passes its own views"
        if signature.intermediate_states:
            return "mamba_ssm gives no intermediate states"
        if signature.is_cont_batched and signature.has_initstates:
            return "mamba_ssm takes initial states a row, not a packed sequence"
        return ""

    def calls(self, signature: Signature) -> Iterator[Call]:
        if signature.is_cont_batched:
            for batch in packed_batches(signature):
                yield partial(self._call, signature, 1, batch.tokens, batch.num_seqs)
        else:
            for rows in row_batches(signature):
                yield partial(self._call, signature, rows.rows, rows.tokens, 0)

    def _call(self, s: Signature, rows: int, tokens: int, packed: int) -> None:
        parameters = DTYPES[s.param_dtype]
        projection = projected(s, rows, tokens)
        x, B, C = split(s, _convolved(s, projection, packed))
        D = {"none": (), "head": (s.nheads,), "headdim": (s.nheads, s.headdim)}[s.D]
        gate = projection[..., : s.nheads * s.headdim]
        self._operation(
            x,
            projection[..., -s.nheads :].to(DTYPES[s.dt_dtype]),
            meta(s.nheads, dtype=torch.float32),
            B,
            C,
            chunk_size=s.chunk_size,
            D=meta(*D, dtype=parameters) if D else None,
            z=torch.unflatten(gate, -1, (s.nheads, s.headdim)) if s.z else None,
            dt_bias=meta(s.nheads, dtype=parameters) if s.dt_bias else None,
            initial_states=states(s, rows) if s.has_initstates else None,
            seq_idx=indices(rows * tokens).view(rows, tokens) if s.seq_idx or packed else None,
            cu_seqlens=indices(packed + 1) if packed else None,
            dt_softplus=s.dt_softplus,
            return_final_states=True,
            return_varlen_states=packed > 0,
        )


def _convolved(s: Signature, projection: Tensor, packed: int) -> Tensor:
    """The convolution's output, (rows, tokens, channels).

    The package causal_conv1d makes it like its input, with channels last; packed sequences need
    that package. torch's convolution has tokens last and `conv_kernel - 1` more than are kept.
    """
    into = convolution_input(s, projection).transpose(1, 2)
    if packed or importlib.util.find_spec("causal_conv1d") is not None:
        return torch.empty_like(into).transpose(1, 2)
    rows, channels, tokens = into.shape
    padded = meta(rows, channels, tokens + s.conv_kernel - 1, dtype=into.dtype)
    return torch.empty_like(padded.transpose(1, 2)[:, :tokens])


ENGINE = MambaSsm()
