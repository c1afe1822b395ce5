"""The tensors of a drawn batch, on the meta device, cut the way mixers cut them.

By torch's own slicing and viewing, so that strides, offsets and the strides of dimensions of size
one are those that a server passes.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ssd_aot.fuzzing.batch import Batch
from ssd_aot.fuzzing.promises import Deployment

TORCH_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
PAGE_BYTES = 4096
"""Pages of a cache that attention layers share are padded to theirs: 16 tokens of one head of 64
channels, keys and values, in 16 bits, is the smallest."""


def inputs(batch: Batch, lead: tuple[int, ...]) -> dict[str, Any]:
    """x, dt, B, C, z, A, D, dt_bias and initial_states; `lead` is (tokens,) or (rows, tokens)."""
    own, axes, memory = batch.deployment, batch.deployment.axes, batch.memory
    headdim, dstate, heads, groups = own.model.headdim, own.model.dstate, own.nheads, own.ngroups
    inner, state = heads * headdim, groups * dstate
    dtype, parameters = TORCH_DTYPES[axes["dtype"]], TORCH_DTYPES[axes["param_dtype"]]
    before, tokens = batch.decode_tokens, batch.tokens
    late, wider = int(memory.skew == "start"), int(memory.skew in ("start", "row"))
    first = before if memory.shared_rows else 0
    convolved = empty(first + tokens, inner + 2 * state + wider, dtype=dtype)[first:]
    if wider:
        convolved = convolved[:, late : late + inner + 2 * state]
    projected = empty(before + tokens, 2 * (inner + state) + heads, dtype=dtype)[before:]
    if len(lead) > 1:
        convolved = torch.unflatten(convolved, 0, lead)
        projected = torch.unflatten(projected, 0, lead)
    x, B, C = torch.split(convolved, [inner, state, state], dim=-1)
    z, _, dt = torch.split(projected, [inner, inner + 2 * state, heads], dim=-1)
    dt_dtype = TORCH_DTYPES[axes["dt_dtype"]]
    form = axes["D"]
    return {
        "x": x.view(*lead, heads, headdim),
        "dt": dt if dt_dtype == dtype else dt.to(dt_dtype),
        "A": empty(heads, dtype=torch.float32),
        "B": B.view(*lead, groups, dstate),
        "C": C.view(*lead, groups, dstate),
        "D": None
        if form == "none"
        else empty(*((heads,) if form == "head" else (heads, headdim)), dtype=parameters),
        "z": z.view(*lead, heads, headdim) if axes["z"] else None,
        "dt_bias": empty(heads, dtype=parameters) if axes["dt_bias"] else None,
        "initial_states": states(batch, len(batch.sequences)) if batch.initial_states else None,
    }


def states(batch: Batch, count: int) -> Tensor:
    """(count, nheads, headdim, dstate), dense, as gathered from a cache; late with such a skew."""
    own = batch.deployment
    late = int(batch.memory.skew == "states")
    flat = empty(
        late + count * own.nheads * own.model.headdim * own.model.dstate,
        dtype=TORCH_DTYPES[own.axes["state_dtype"]],
    )
    return flat[late:].view(count, own.nheads, own.model.headdim, own.model.dstate)


def state_cache(batch: Batch) -> Tensor:
    """The layer's state cache, with a slot more than there are seats."""
    own, memory = batch.deployment, batch.memory
    slots = own.max_num_seqs + 1
    size = TORCH_DTYPES[own.axes["state_dtype"]].itemsize
    conv = conv_bytes(own, memory.drafts)
    if not memory.pages or conv % size:
        return states(batch, slots)
    shape = (own.nheads, own.model.headdim, own.model.dstate)
    page = conv + shape[0] * shape[1] * shape[2] * size
    if memory.padded:
        page = -(-page // PAGE_BYTES) * PAGE_BYTES
    late = int(memory.skew == "states")
    flat = empty(late + slots * page // size, dtype=TORCH_DTYPES[own.axes["state_dtype"]])
    strides = (page // size, shape[1] * shape[2], shape[2], 1)
    return flat.as_strided((slots, *shape), strides, late + conv // size)


def conv_bytes(deployment: Deployment, drafts: int) -> int:
    """Bytes of one sequence's convolution state, which a page keeps before the scan's: the inputs
    of `conv_kernel` - 1 tokens, and of the speculative ones."""
    model = deployment.model
    channels = deployment.nheads * model.headdim + 2 * deployment.ngroups * model.dstate
    columns = model.conv_kernel - 1 + drafts
    return columns * channels * TORCH_DTYPES[deployment.axes["dtype"]].itemsize


def output(batch: Batch) -> Tensor:
    """(tokens, nheads, headdim) of the step's output, behind the decode tokens' rows."""
    own = batch.deployment
    width, rows = own.nheads * own.model.headdim, batch.decode_tokens + batch.tokens
    out = empty(rows, width, dtype=TORCH_DTYPES[own.axes["dtype"]])[batch.decode_tokens :]
    return out.view(batch.tokens, own.nheads, own.model.headdim)


def indices(batch: Batch, *shape: int) -> Tensor:
    return empty(*shape, dtype=torch.int64 if batch.memory.wide_indices else torch.int32)


def empty(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
