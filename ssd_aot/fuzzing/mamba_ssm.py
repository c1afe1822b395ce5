"""mamba_ssm's operation under the fuzzer, called as `Mamba2` calls it and by itself.

From mamba_ssm 2.3.2: `Mamba2.forward` of `modules/mamba2.py`, and the calls of
`tests/test_generation.py`. A batch stands by itself: no other rows are in its tensors.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import silu

from ssd_aot.engines.mamba_ssm import OPERATION
from ssd_aot.fuzzing.batch import Batch
from ssd_aot.fuzzing.operation import OperationLaunchCode
from ssd_aot.fuzzing.promises import Deployment
from ssd_aot.fuzzing.tensors import (
    TORCH_DTYPES,
    empty,
    indices,
    parameters,
    projected,
    split_convolved,
    split_projection,
    states,
)

ALONE = "the operation by itself"
LAYER = "Mamba2"
MADE_FOR_DTYPE = "Mamba2, its D in float32"
"""`Mamba2(dtype=…)` makes dt_bias of that dtype and D in float32; a model that is converted as a
whole has both of one. It passes no initial states: calls with some are the operation's own."""


class MambaSsmLaunchCode(OperationLaunchCode):
    """Runs `mamba_chunk_scan_combined` of the mamba_ssm that this process has imported."""

    def __init__(self) -> None:
        super().__init__()
        self._operation = importlib.import_module(OPERATION).mamba_chunk_scan_combined
        self._own_convolution = importlib.util.find_spec("causal_conv1d") is not None

    def served(self, deployment: Deployment) -> Deployment | None:
        axes, reaches = deployment.axes, deployment.reaches
        if axes["layout"] != "engine" or axes["intermediate_states"]:
            return None
        if axes["IS_CONT_BATCHED"]:
            # Initial states are for rows: packed sequences cannot be told apart in them.
            reaches = tuple(reach for reach in reaches if not reach.initial_states)
        return replace(deployment, reaches=reaches) if reaches else None

    def calls(self, deployment: Deployment) -> Sequence[str]:
        axes = deployment.axes
        own = axes["dt_dtype"] == axes["dtype"] and axes["D"] != "none"
        if not own or not axes["dt_bias"] or not axes["dt_softplus"]:
            return (ALONE,)
        made = axes["param_dtype"] == axes["dtype"] != "fp32"
        return (LAYER, MADE_FOR_DTYPE) if made else (LAYER,)

    def run(self, batch: Batch) -> None:
        own, axes = batch.deployment, batch.deployment.axes
        packed, count = axes["IS_CONT_BATCHED"], len(batch.sequences)
        lead = (1, batch.tokens) if packed else (count, batch.sequences[0].tokens)
        gate, into, dt = split_projection(own, projected(own, *lead))
        # Pieces of sequences, and packed ones, only the package causal_conv1d can tell apart.
        marked = packed or axes["seq_idx"]
        convolved = self._convolved(into.transpose(1, 2), own, marked).transpose(1, 2)
        given = parameters(own)
        if batch.call == MADE_FOR_DTYPE and not batch.initial_states:
            given["D"] = given["D"].float()
        self._operation(
            **split_convolved(own, convolved, lead),
            **given,
            dt=dt if axes["dt_dtype"] == axes["dtype"] else dt.to(TORCH_DTYPES[axes["dt_dtype"]]),
            chunk_size=axes["chunk_size"],
            z=gate.view(*lead, own.nheads, own.model.headdim) if axes["z"] else None,
            initial_states=states(batch, count) if batch.initial_states else None,
            seq_idx=empty(*lead, dtype=torch.int32) if marked else None,
            # Sums of lengths are int64 in torch unless one says otherwise.
            cu_seqlens=indices(batch, count + 1) if packed else None,
            dt_softplus=axes["dt_softplus"],
            return_final_states=True,
            return_varlen_states=packed,
        )

    def _convolved(self, into: Tensor, own: Deployment, marked: bool) -> Tensor:
        """The convolution's output, (rows, channels, tokens), of an input of that shape."""
        if marked or self._own_convolution:
            return torch.empty_like(into)
        rows, channels, tokens = into.shape
        padded = empty(rows, channels, tokens + own.model.conv_kernel - 1, dtype=into.dtype)
        return silu(padded.transpose(1, 2)[:, :tokens]).transpose(1, 2)
