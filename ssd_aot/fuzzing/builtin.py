"""The builtin source under the fuzzer: the public operations, called as their callers call them.

Tensors are meta tensors cut the way mixers cut them, by torch's own slicing and viewing, so that
strides, offsets and the strides of dimensions of size one are those that a server passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ssd_aot import ops
from ssd_aot.bundle.manifest import TargetEntry
from ssd_aot.fuzzing.batch import Batch
from ssd_aot.fuzzing.promises import Deployment
from ssd_aot.launches import Launch
from ssd_aot.layouts import Blocking, Counts, Form, FormRule, ScanLayout
from ssd_aot.operation import launches
from ssd_aot.ops.execution import executing

TORCH_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
KEPT = 4096
"""Layouts whose launches are kept: in batch layout the strides change with every token count."""

PAGE_BYTES = 4096
"""Pages of a cache that attention layers share are padded to theirs: 16 tokens of one head of 64
channels, keys and values, in 16 bits, is the smallest."""


class _Call(NamedTuple):
    layout: ScanLayout
    counts: Counts


class BuiltinLaunchCode:
    """Runs `ssd_aot.ops` and captures what reaches the executor."""

    blocking = Blocking()

    def __init__(self) -> None:
        self._captured: list[_Call] = []
        self._batch: Batch | None = None
        self._launches: dict[tuple[ScanLayout, Form], tuple[Launch, ...]] = {}

    def calls(self, deployment: Deployment) -> Sequence[str]:
        if not deployment.axes["IS_CONT_BATCHED"]:
            return ("mamba_ssm", "mamba_ssm, final states", "tensorrt_llm",
                    "tensorrt_llm, final states")  # fmt: skip
        if deployment.axes["intermediate_states"]:
            return ("varlen, intermediate states",)
        return ("varlen", "varlen, states returned", "prepared", "mamba_ssm, packed",
                "tensorrt_llm, packed")  # fmt: skip

    def launches(self, batch: Batch, target: TargetEntry) -> Sequence[Launch]:
        rule = FormRule(target.walk_programs, target.walk_tokens)
        issued: tuple[Launch, ...] = ()
        for layout, counts in self._run(batch):
            issued += self._of(layout, rule.choose(layout, counts))
        return issued

    def run(self, tensors: Mapping[str, Tensor], layout: ScanLayout, counts: Counts) -> None:
        """What the operations hand over (see `ops.execution.Executor`)."""
        self._captured.append(_Call(layout, counts))

    def _run(self, batch: Batch) -> Sequence[_Call]:
        # The targets of a bundle ask for one batch after the other.
        if batch is not self._batch:
            self._captured = []
            with executing(self):
                run(batch)
            self._batch = batch
        return self._captured

    def _of(self, layout: ScanLayout, form: Form) -> tuple[Launch, ...]:
        known = self._launches.get((layout, form))
        if known is None:
            if len(self._launches) >= KEPT:
                self._launches.clear()
            known = self._launches[layout, form] = launches(layout, form)
        return known


def run(batch: Batch) -> None:
    """Call the operation that the batch names, on tensors without memory."""
    (_packed if batch.deployment.axes["IS_CONT_BATCHED"] else _rows)(batch)


def _packed(batch: Batch) -> None:
    axes, call, count = batch.deployment.axes, batch.call, len(batch.sequences)
    given = _inputs(batch, (batch.tokens,))
    ends = _indices(batch, count + 1)
    state_dtype = TORCH_DTYPES[axes["state_dtype"]]
    if call == "prepared":
        bound = {name: given.pop(name) for name in ("A", "D", "dt_bias")}
        layer = ops.prepare(**bound, chunk_size=axes["chunk_size"], dt_softplus=axes["dt_softplus"])
        layer(**given, out=_out(batch), cu_seqlens=ends, final_states_out=_cache(batch),
              final_state_indices=_indices(batch, count))  # fmt: skip
        return
    given.update(chunk_size=axes["chunk_size"], dt_softplus=axes["dt_softplus"],
                 state_dtype=state_dtype)  # fmt: skip
    if call.endswith("packed"):
        rows = ("x", "dt", "B", "C", "z")
        given.update({n: given[n].unsqueeze(0) for n in rows if given[n] is not None})
        given.update(cu_seqlens=ends, return_varlen_states=True)
        if call.startswith("mamba_ssm"):
            ops.mamba_ssm.mamba_chunk_scan_combined(**given)
        else:
            out = _out(batch).unsqueeze(0)
            ops.tensorrt_llm.mamba_chunk_scan_combined(**given, out=out)
        return
    if call == "varlen":
        given.update(final_states_out=_cache(batch), final_state_indices=_indices(batch, count))
    chunks = batch.chunks
    ops.mamba_chunk_scan_combined_varlen(
        **given,
        cu_seqlens=ends,
        cu_chunk_seqlens=_indices(batch, chunks + 1),
        last_chunk_indices=_indices(batch, count),
        seq_idx=_indices(batch, chunks),
        out=_out(batch),
        return_intermediate_states=axes["intermediate_states"],
    )


def _rows(batch: Batch) -> None:
    axes, count = batch.deployment.axes, len(batch.sequences)
    shape = (count, batch.sequences[0].tokens)
    given = _inputs(batch, shape)
    given.update(
        chunk_size=axes["chunk_size"],
        dt_softplus=axes["dt_softplus"],
        state_dtype=TORCH_DTYPES[axes["state_dtype"]],
        seq_idx=_indices(batch, *shape) if axes["seq_idx"] else None,
        return_final_states=batch.call.endswith("final states"),
    )
    if batch.call.startswith("mamba_ssm"):
        ops.mamba_ssm.mamba_chunk_scan_combined(**given)
    else:
        out = _out(batch).view(*shape, batch.deployment.nheads, -1)
        ops.tensorrt_llm.mamba_chunk_scan_combined(**given, out=out)


def _inputs(batch: Batch, lead: tuple[int, ...]) -> dict[str, Any]:
    """x, dt, B, C, z, A, D, dt_bias and initial_states; `lead` is (tokens,) or (rows, tokens)."""
    own, axes, memory = batch.deployment, batch.deployment.axes, batch.memory
    headdim, dstate, heads, groups = own.model.headdim, own.model.dstate, own.nheads, own.ngroups
    inner, state = heads * headdim, groups * dstate
    dtype, parameters = TORCH_DTYPES[axes["dtype"]], TORCH_DTYPES[axes["param_dtype"]]
    before, tokens = batch.decode_tokens, batch.tokens
    late, wider = int(memory.skew == "start"), int(memory.skew in ("start", "row"))
    first = before if memory.shared_rows else 0
    convolved = _empty(first + tokens, inner + 2 * state + wider, dtype=dtype)[first:]
    if wider:
        convolved = convolved[:, late : late + inner + 2 * state]
    projected = _empty(before + tokens, 2 * (inner + state) + heads, dtype=dtype)[before:]
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
        "A": _empty(heads, dtype=torch.float32),
        "B": B.view(*lead, groups, dstate),
        "C": C.view(*lead, groups, dstate),
        "D": None
        if form == "none"
        else _empty(*((heads,) if form == "head" else (heads, headdim)), dtype=parameters),
        "z": z.view(*lead, heads, headdim) if axes["z"] else None,
        "dt_bias": _empty(heads, dtype=parameters) if axes["dt_bias"] else None,
        "initial_states": _states(batch, len(batch.sequences)) if batch.initial_states else None,
    }


def _states(batch: Batch, count: int) -> Tensor:
    """(count, nheads, headdim, dstate), dense, as gathered from a cache; late with such a skew."""
    own = batch.deployment
    late = int(batch.memory.skew == "states")
    flat = _empty(
        late + count * own.nheads * own.model.headdim * own.model.dstate,
        dtype=TORCH_DTYPES[own.axes["state_dtype"]],
    )
    return flat[late:].view(count, own.nheads, own.model.headdim, own.model.dstate)


def _cache(batch: Batch) -> Tensor:
    """The layer's state cache, with a slot more than there are seats."""
    own, memory = batch.deployment, batch.memory
    slots = own.max_num_seqs + 1
    size = TORCH_DTYPES[own.axes["state_dtype"]].itemsize
    conv = conv_bytes(own, memory.drafts)
    if not memory.pages or conv % size:
        return _states(batch, slots)
    shape = (own.nheads, own.model.headdim, own.model.dstate)
    states = shape[0] * shape[1] * shape[2]
    page = conv + states * size
    if memory.padded:
        page = -(-page // PAGE_BYTES) * PAGE_BYTES
    late = int(memory.skew == "states")
    flat = _empty(late + slots * page // size, dtype=TORCH_DTYPES[own.axes["state_dtype"]])
    strides = (page // size, shape[1] * shape[2], shape[2], 1)
    return flat.as_strided((slots, *shape), strides, late + conv // size)


def conv_bytes(deployment: Deployment, drafts: int) -> int:
    """Bytes of one sequence's convolution state, which a page keeps before the scan's: the inputs
    of `conv_kernel` - 1 tokens, and of the speculative ones."""
    model = deployment.model
    channels = deployment.nheads * model.headdim + 2 * deployment.ngroups * model.dstate
    columns = model.conv_kernel - 1 + drafts
    return columns * channels * TORCH_DTYPES[deployment.axes["dtype"]].itemsize


def _out(batch: Batch) -> Tensor:
    """(tokens, nheads, headdim) of the step's output, behind the decode tokens' rows."""
    own = batch.deployment
    width, rows = own.nheads * own.model.headdim, batch.decode_tokens + batch.tokens
    out = _empty(rows, width, dtype=TORCH_DTYPES[own.axes["dtype"]])[batch.decode_tokens :]
    return out.view(batch.tokens, own.nheads, own.model.headdim)


def _indices(batch: Batch, *shape: int) -> Tensor:
    return _empty(*shape, dtype=torch.int64 if batch.memory.wide_indices else torch.int32)


def _empty(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")
