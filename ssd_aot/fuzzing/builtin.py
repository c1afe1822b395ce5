"""The builtin source under the fuzzer: the public operations, called as their callers call them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from ssd_aot import ops
from ssd_aot.bundle.manifest import TargetEntry
from ssd_aot.fuzzing.batch import Batch
from ssd_aot.fuzzing.promises import Deployment
from ssd_aot.fuzzing.tensors import TORCH_DTYPES, indices, inputs, output, state_cache
from ssd_aot.launches import Launch
from ssd_aot.layouts import Blocking, Counts, Form, FormRule, ScanLayout
from ssd_aot.operation import launches
from ssd_aot.ops.execution import executing

KEPT = 4096
"""Layouts whose launches are kept: in batch layout the strides change with every token count."""


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

    def served(self, deployment: Deployment) -> Deployment | None:
        return deployment

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
    given = inputs(batch, (batch.tokens,))
    ends = indices(batch, count + 1)
    state_dtype = TORCH_DTYPES[axes["state_dtype"]]
    if call == "prepared":
        bound = {name: given.pop(name) for name in ("A", "D", "dt_bias")}
        layer = ops.prepare(**bound, chunk_size=axes["chunk_size"], dt_softplus=axes["dt_softplus"])
        layer(**given, out=output(batch), cu_seqlens=ends, final_states_out=state_cache(batch),
              final_state_indices=indices(batch, count))  # fmt: skip
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
            out = output(batch).unsqueeze(0)
            ops.tensorrt_llm.mamba_chunk_scan_combined(**given, out=out)
        return
    if call == "varlen":
        given.update(final_states_out=state_cache(batch), final_state_indices=indices(batch, count))
    chunks = batch.chunks
    ops.mamba_chunk_scan_combined_varlen(
        **given,
        cu_seqlens=ends,
        cu_chunk_seqlens=indices(batch, chunks + 1),
        last_chunk_indices=indices(batch, count),
        seq_idx=indices(batch, chunks),
        out=output(batch),
        return_intermediate_states=axes["intermediate_states"],
    )


def _rows(batch: Batch) -> None:
    axes, count = batch.deployment.axes, len(batch.sequences)
    shape = (count, batch.sequences[0].tokens)
    given = inputs(batch, shape)
    given.update(
        chunk_size=axes["chunk_size"],
        dt_softplus=axes["dt_softplus"],
        state_dtype=TORCH_DTYPES[axes["state_dtype"]],
        seq_idx=indices(batch, *shape) if axes["seq_idx"] else None,
        return_final_states=batch.call.endswith("final states"),
    )
    if batch.call.startswith("mamba_ssm"):
        ops.mamba_ssm.mamba_chunk_scan_combined(**given)
    else:
        out = output(batch).view(*shape, batch.deployment.nheads, -1)
        ops.tensorrt_llm.mamba_chunk_scan_combined(**given, out=out)
