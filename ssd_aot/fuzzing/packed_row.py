"""A packed batch as SGLang's and TensorRT-LLM's mixers pass it: one row, chunked as a whole.

Prefill tokens come first in a step, those of decoding requests behind them, so every view of the
step's tensors begins where they do. A chunk is cut into pieces where a sequence ends within it;
with initial states the mixer passes which chunk each piece is of and where in it the piece begins.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ssd_aot.fuzzing.batch import Batch
from ssd_aot.fuzzing.tensors import (
    TORCH_DTYPES,
    empty,
    projected,
    split_convolved,
    split_projection,
    states,
)


def packed_row(batch: Batch, convolve: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """The arguments of the operation but for the parameters and the pieces.

    `convolve` makes the convolution's output, (channels, tokens), of an input of that shape, whose
    rows are a slice of the projection.
    """
    own, tokens, count = batch.deployment, batch.tokens, len(batch.sequences)
    axes, rows = own.axes, batch.tokens + batch.decode_tokens
    _, into, dt = split_projection(own, projected(own, rows))
    convolved = convolve(into[:tokens].transpose(0, 1)).transpose(0, 1)
    out = empty(rows, own.nheads * own.model.headdim, dtype=TORCH_DTYPES[axes["dtype"]])
    return {
        **split_convolved(own, convolved, (1, tokens)),
        "dt": dt[:tokens].unsqueeze(0),
        "out": out[:tokens].view(1, tokens, -1, own.model.headdim),
        "z": None,
        "initial_states": states(batch, count) if batch.initial_states else None,
        "seq_idx": int32(tokens).unsqueeze(0),
        "cu_seqlens": int32(count + 1),
        "return_varlen_states": True,
        **constants(batch),
    }


def constants(batch: Batch) -> dict[str, Any]:
    """What a mixer passes with every call."""
    axes = batch.deployment.axes
    return {
        "chunk_size": axes["chunk_size"],
        "dt_softplus": True,
        "dt_limit": (0.0, float("inf")),
        "state_dtype": TORCH_DTYPES[axes["state_dtype"]],
    }


def cuts(batch: Batch) -> int:
    """The ends of sequences that lie within a chunk: so many more pieces are there than chunks."""
    size = _chunk_size(batch)
    ends = list(accumulate(tokens for _, tokens in batch.sequences))
    return sum(end % size > 0 for end in ends[:-1])


def pieces(batch: Batch) -> int:
    return -(-batch.tokens // _chunk_size(batch)) + cuts(batch)


def _chunk_size(batch: Batch) -> int:
    return int(batch.deployment.axes["chunk_size"])


def int32(count: int) -> Tensor:
    return empty(count, dtype=torch.int32)
