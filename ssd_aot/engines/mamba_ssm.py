"""mamba_ssm: rows of equal length, or one row of packed sequences, as `Mamba2` calls it.

Facts of shapes and views are those of mamba_ssm 2.3.2 (`modules/mamba2.py`). The operation is also
called by itself, so D, z, dt_bias and seq_idx are what a signature says.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from ssd_aot.engines.chunked_batches import packed_batches, row_batches
from ssd_aot.engines.engine import Call
from ssd_aot.engines.operation_modules import OperationEngine, pass_over, scan_module
from ssd_aot.engines.serving_calls import PreparedCall, ServingBatch, call_without_memory
from ssd_aot.engines.shapes import convolution_input, filled, owners, projected, split
from ssd_aot.problems import Problem, Results
from ssd_aot.serving_tensors import DTYPES
from ssd_aot.signatures import Signature
from ssd_aot.targets import Target

OPERATION = "mamba_ssm.ops.triton.ssd_combined"


class MambaSsm(OperationEngine):
    name = "mamba_ssm"
    package = "mamba_ssm"

    @contextmanager
    def imported(self, target: Target) -> Iterator[None]:
        pass_over(("mamba_ssm", "mamba_ssm.ops"))
        with self._holding(scan_module(OPERATION).mamba_chunk_scan_combined):
            yield

    def adopt(self) -> bool:
        return self._adopt(OPERATION, "mamba_chunk_scan_combined")

    def refusal(self, signature: Signature) -> str:
        if signature.layout != "engine":
            return "mamba_ssm's mixer passes its own views"
        if signature.intermediate_states:
            return "mamba_ssm gives no intermediate states"
        if signature.is_cont_batched and signature.has_initstates:
            return "mamba_ssm takes initial states a row, not a packed sequence"
        return ""

    def calls(self, signature: Signature) -> Iterator[Call]:
        batches = packed_batches if signature.is_cont_batched else row_batches
        two = signature.is_cont_batched or _made_for_dtype(signature)
        for batch in batches(signature):
            for other in (False, True) if two else (False,):
                served = ServingBatch(signature, batch.lengths, decode_tokens=0, alternate=other)
                yield partial(call_without_memory, self, served)

    def prepare(self, batch: ServingBatch, problem: Problem) -> PreparedCall:
        """The alternate call has D of a layer that was made for a dtype, and ends of sequences in
        int64."""
        s, packed = problem.signature, problem.signature.is_cont_batched
        inputs, D, ends = _inputs(problem), problem.D, problem.cu_seqlens if packed else None
        if batch.alternate and D is not None and _made_for_dtype(s):
            D = D.float()
        if batch.alternate and ends is not None:
            ends = ends.long()
        run = partial(
            self._operation,
            inputs["x"],
            inputs["dt"].to(DTYPES[s.dt_dtype]),
            problem.A,
            inputs["B"],
            inputs["C"],
            chunk_size=s.chunk_size,
            D=D,
            z=inputs.get("z"),
            dt_bias=problem.dt_bias,
            initial_states=problem.initial_states,
            seq_idx=owners(problem).unsqueeze(0) if packed else problem.seq_idx,
            cu_seqlens=ends,
            dt_softplus=s.dt_softplus,
            dt_limit=problem.dt_limit,
            return_final_states=True,
            return_varlen_states=packed,
        )
        return PreparedCall(run, _results)


def _made_for_dtype(s: Signature) -> bool:
    """Whether `Mamba2(dtype=…)` calls so as well: it makes dt_bias of that dtype, D in fp32."""
    own = s.dt_dtype == s.dtype == s.param_dtype and s.dt_bias and s.dt_softplus
    return own and s.D != "none" and not s.has_initstates


def _results(returned: tuple[Tensor, ...]) -> Results:
    """Of packed sequences, the states at the end of the row come before those of each sequence."""
    return Results(returned[0].flatten(0, 1), returned[-1])


def _inputs(problem: Problem) -> dict[str, Tensor]:
    """x, dt, B, C, and z if there is one, (rows, tokens, …)."""
    s = problem.signature
    rows, tokens = (1, *problem.x.shape)[-4:-2]
    projection = projected(s, rows, tokens, device=problem.x.device)
    x, B, C = split(s, _convolved(s, projection))
    views = {"x": x, "dt": projection[..., -s.nheads :], "B": B, "C": C}
    if s.z:
        gate = projection[..., : s.nheads * s.headdim]
        views["z"] = torch.unflatten(gate, -1, (s.nheads, s.headdim))
    return filled(problem, views)


def _convolved(s: Signature, projection: Tensor) -> Tensor:
    """The convolution's output, (rows, tokens, channels).

    The package causal_conv1d makes it like its input, with channels last; packed sequences and a
    seq_idx need that package. torch's convolution has tokens last and `conv_kernel - 1` more than
    are kept.
    """
    into = convolution_input(s, projection).transpose(1, 2)
    if s.is_cont_batched or s.seq_idx or importlib.util.find_spec("causal_conv1d") is not None:
        return torch.empty_like(into).transpose(1, 2)
    rows, channels, tokens = into.shape
    padded = into.new_empty(rows, channels, tokens + s.conv_kernel - 1)
    return torch.empty_like(padded.transpose(1, 2)[:, :tokens])


ENGINE = MambaSsm()
