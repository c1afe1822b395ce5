"""Running launch code on meta tensors and capturing every launch it would make.

For the builtin source the launch code is the public operations themselves: called with tensors
that have shapes, strides and storage offsets but no memory, and an executor that writes down the
launches in place of running them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from ssd_aot.launches import Launch
from ssd_aot.layouts import Blocking, Counts, Form, FormRule, ScanLayout
from ssd_aot.operation import launches
from ssd_aot.ops.execution import executing
from ssd_aot.problems import make_problem
from ssd_aot.signatures import Signature
from ssd_aot.sources.batches import batches


@dataclass
class Capture:
    """An executor that keeps the launches of each scan, in order of first appearance."""

    rule: FormRule
    blocking: Blocking = field(default_factory=Blocking)
    seen: dict[Launch, None] = field(default_factory=dict)
    _described: dict[tuple[ScanLayout, Form], None] = field(default_factory=dict)

    def run(self, tensors: Mapping[str, Tensor], layout: ScanLayout, counts: Counts) -> None:
        form = self.rule.choose(layout, counts)
        if (layout, form) not in self._described:
            self._described[layout, form] = None
            self.seen.update(dict.fromkeys(launches(layout, form)))


def trace(signature: Signature, rule: FormRule) -> tuple[Launch, ...]:
    """Every launch that the operations issue over the batches a signature can reach."""
    capture = Capture(rule)
    with executing(capture):
        for batch in batches(signature, rule.walk_tokens + 1):
            for shaped in _shapes(signature):
                problem = make_problem(
                    shaped, batch.lengths, device="meta", decode_tokens=batch.decode_tokens
                )
                problem.run(final_states=True, paged=batch.paged)
                if not signature.is_cont_batched:
                    problem.run(final_states=False)
    return tuple(capture.seen)


def _shapes(signature: Signature) -> tuple[Signature, ...]:
    """The signature as its problems are shaped: views without alignment to rely on may have some,
    as those of a single token do."""
    if signature.layout != "unaligned":
        return (signature,)
    return signature, replace(signature, layout="engine")
