"""A warm load's calls: every layout, every form, and memory of a few signatures at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
import torch
from signature_builders import signature
from torch import Tensor

from ssd_aot.layouts import Blocking, Counts, FormRule, ScanLayout
from ssd_aot.ops.execution import executing
from ssd_aot.runtime.warming import REHEARSALS, REHEARSED, batch_lengths, warm_up

SMALL = signature(nheads=2, headdim=16, dstate=16, ngroups=1, num_seqs=(1, 1))
RULE = FormRule(walk_programs=8, walk_tokens=512)


@dataclass
class Executor:
    """Keeps what calls are of."""

    blocking: Blocking = field(default_factory=Blocking)
    calls: list[tuple[ScanLayout, Counts]] = field(default_factory=list)

    def run(self, tensors: Mapping[str, Tensor], layout: ScanLayout, counts: Counts) -> None:
        self.calls.append((layout, counts))


def test_every_distinct_signature_is_called_in_each_of_its_forms() -> None:
    executor = Executor()
    wide = replace(SMALL, nheads=8, model="wide")
    signatures = [SMALL, replace(SMALL, model="twin", tp=2), wide]

    with executing(executor):
        warm_up(signatures, torch.device("cpu"))

    forms = {(layout.nheads, RULE.choose(layout, counts)) for layout, counts in executor.calls}
    assert forms == {(2, "walk"), (2, "short_segments"), (8, "walk")}
    assert len({layout for layout, _ in executor.calls}) == 2
    # Three calls of each length, and two a rehearsal of the short one.
    assert len(executor.calls) == 2 * (2 * 3 + 2 * REHEARSALS)


def test_no_more_than_a_few_signatures_are_rehearsed() -> None:
    executor = Executor()
    several = [replace(SMALL, nheads=nheads) for nheads in range(2, 2 * REHEARSED, 1)]

    with executing(executor):
        warm_up(several, torch.device("cpu"))

    assert len(executor.calls) == 6 * len(several) + 2 * REHEARSALS * REHEARSED


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, (128, 1024)),
        ({"num_seqs": (8, 16)}, (128, 128)),
        ({"max_num_batched_tokens": 64}, (64, 64)),
        ({"lengths": "chunk_aligned", "chunk_size": 256}, (256, 1024)),
        ({"num_seqs": (1024, 1024)}, (1, 1)),
    ],
)
def test_batches_are_as_long_as_a_signature_allows(
    changes: dict[str, object], wanted: tuple[int, int]
) -> None:
    assert batch_lengths(replace(SMALL, **changes)) == wanted  # type: ignore[arg-type]
