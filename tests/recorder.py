"""What the operations hand to whoever executes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ssd_aot.layouts import Blocking, Counts, ScanLayout


@dataclass
class Recorder:
    """An executor that keeps what it was handed."""

    blocking: Blocking = field(default_factory=Blocking)
    layouts: list[ScanLayout] = field(default_factory=list)
    counts: list[Counts] = field(default_factory=list)

    def run(self, tensors: Mapping[str, Tensor], layout: ScanLayout, counts: Counts) -> None:
        self.layouts.append(layout)
        self.counts.append(counts)
