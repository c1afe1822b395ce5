"""Running launch code on meta tensors and capturing every launch it would make.

For the builtin source the launch code is the public operations themselves: called with tensors
that have shapes, strides and storage offsets but no memory, and an executor that writes down the
launches in place of running them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ssd_aot.launches import Launch
from ssd_aot.operation import Blocking, Counts, Form, FormRule, ScanLayout, launches
from ssd_aot.ops.execution import executing
from ssd_aot.signatures import Signature
from ssd_aot.sources.batches import Batch, batches
from ssd_aot.sources.calls import call_operations


@dataclass
class Capture:
    """An executor that keeps the launches of each scan, in order of first appearance."""

    rule: FormRule
    blocking: Blocking = field(default_factory=Blocking)
    seen: dict[Launch, None] = field(default_factory=dict)
    _described: dict[tuple[ScanLayout, Form], tuple[Launch, ...]] = field(default_factory=dict)

    def run(self, tensors: Mapping[str, Tensor], layout: ScanLayout, counts: Counts) -> None:
        form = self.rule.choose(layout, counts)
        found = self._described.get((layout, form))
        if found is None:
            found = self._described[layout, form] = launches(layout, form)
        for launch in found:
            self.seen.setdefault(launch)


def trace(signature: Signature, rule: FormRule) -> tuple[Launch, ...]:
    """Every launch that the operations issue over the batches a signature can reach."""
    capture = Capture(rule)
    with executing(capture):
        for batch in batches(signature):
            trace_batch(signature, batch)
    return tuple(capture.seen)


def trace_batch(signature: Signature, batch: Batch) -> None:
    """Issue the calls of one batch into the current executor."""
    call_operations(signature, batch)
