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
    before, tokens, channels = batch.decode_tokens, batch.tokens, conv_channels(own)
    late, wider = int(memory.skew == "start"), int(memory.skew in ("start", "row"))
    first = before if memory.shared_rows else 0
    dtype = TORCH_DTYPES[axes["dtype"]]
    convolved = empty(first + tokens, channels + wider, dtype=dtype)[first:]
    if wider:
        convolved = convolved[:, late : late + channels]
    projection = projected(own, before + tokens)[before:]
    if len(lead) > 1:
        convolved = torch.unflatten(convolved, 0, lead)
        projection = torch.unflatten(projection, 0, lead)
    z, _, dt = split_projection(own, projection)
    dt_dtype = TORCH_DTYPES[axes["dt_dtype"]]
    return {
        **split_convolved(own, convolved, lead),
        "dt": dt if dt_dtype == dtype else dt.to(dt_dtype),
        **parameters(own),
        "z": z.view(*lead, own.nheads, own.model.headdim) if axes["z"] else None,
        "initial_states": states(batch, len(batch.sequences)) if batch.initial_states else None,
    }


def projected(own: Deployment, *rows: int) -> Tensor:
    """The input projection, (*rows, z and x and B and C and dt)."""
    width = own.nheads * own.model.headdim + conv_channels(own) + own.nheads
    return empty(*rows, width, dtype=TORCH_DTYPES[own.axes["dtype"]])


def split_projection(own: Deployment, projection: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """z, what the convolution takes, and dt: slices of the projection's last dimension."""
    inner = own.nheads * own.model.headdim
    z, into, dt = torch.split(projection, [inner, conv_channels(own), own.nheads], dim=-1)
    return z, into, dt


def split_convolved(own: Deployment, convolved: Tensor, lead: tuple[int, ...]) -> dict[str, Tensor]:
    """x (*lead, nheads, headdim), B and C (*lead, ngroups, dstate): views of the convolution's
    output, whose last dimension are the channels."""
    inner, state = own.nheads * own.model.headdim, own.ngroups * own.model.dstate
    x, B, C = torch.split(convolved, [inner, state, state], dim=-1)
    return {
        "x": x.view(*lead, own.nheads, own.model.headdim),
        "B": B.view(*lead, own.ngroups, own.model.dstate),
        "C": C.view(*lead, own.ngroups, own.model.dstate),
    }


def parameters(own: Deployment, dtype: torch.dtype | None = None) -> dict[str, Any]:
    """A in float32, D and dt_bias in `dtype`, by default that of the deployment's parameters."""
    heads, form = own.nheads, own.axes["D"]
    dtype = dtype or TORCH_DTYPES[own.axes["param_dtype"]]
    D = {"none": (), "head": (heads,), "headdim": (heads, own.model.headdim)}[form]
    return {
        "A": empty(heads, dtype=torch.float32),
        "D": empty(*D, dtype=dtype) if D else None,
        "dt_bias": empty(heads, dtype=dtype) if own.axes["dt_bias"] else None,
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
    columns = deployment.model.conv_kernel - 1 + drafts
    itemsize = TORCH_DTYPES[deployment.axes["dtype"]].itemsize
    return columns * conv_channels(deployment) * itemsize


def conv_channels(deployment: Deployment) -> int:
    """What the convolution runs over: the channels of x, B and C."""
    model = deployment.model
    return deployment.nheads * model.headdim + 2 * deployment.ngroups * model.dstate


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
