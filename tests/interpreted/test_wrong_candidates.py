"""A wrong kernel that is the fastest of its list does not win: run in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from interpreting import Interpreter
from torch import Tensor
from tuning_builders import SESSION, FakeMeasure, compiled, launch_of, small

import ssd_aot.sources.batches
import ssd_aot.tuning.workloads
from ssd_aot.bundle.manifest import VariantEntry
from ssd_aot.launches import Configuration
from ssd_aot.layouts import Counts, Form, ScanLayout
from ssd_aot.ops.execution import Executor
from ssd_aot.tuning.measuring import Scan
from ssd_aot.tuning.record_text import read_record
from ssd_aot.tuning.tuner import tune


class HalfWritten(Interpreter):
    """The right kernels on the first half of the heads' columns alone."""

    def run(self, tensors: Mapping[str, Tensor], layout: ScanLayout, counts: Counts) -> None:
        before = tensors["out"].clone()
        super().run(tensors, layout, counts)
        half = layout.headdim // 2
        tensors["out"][..., half:] = before[..., half:]


class InterpreterMeasure(FakeMeasure):
    """Interprets the form's kernels; the candidate `wrong` writes half, and is the fastest."""

    def __init__(self, wrong: Configuration) -> None:
        super().__init__()
        self._wrong = wrong

    def executor(self, form: Form, variants: Sequence[VariantEntry]) -> Executor:
        half = any(variant.configuration == self._wrong for variant in variants)
        return HalfWritten(form) if half else Interpreter(form)

    def median_us(self, executor: Executor, scans: Sequence[Scan]) -> float:
        return 1.0 if isinstance(executor, HalfWritten) else 10.0


def test_a_kernel_that_writes_half_of_its_output_is_rejected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ssd_aot.sources.batches, "LONGEST_TOKENS", 40)
    monkeypatch.setattr(ssd_aot.tuning.workloads, "MOST_SETS", 1)
    made = compiled([small(num_seqs=(1, 1))], most=2, kernels=["scan"])
    right, wrong = launch_of(made, "scan").planned.candidates

    tune(made, InterpreterMeasure(wrong), SESSION, tmp_path / "h200.json")

    entries = read_record(tmp_path / "h200.json").entries
    scans = [entry for entry in entries if entry.kernel == "scan"]
    assert len(scans) == 3, "one launch of the kernel a form"
    assert all(entry.winner == right for entry in scans)
    tried = [trial for entry in scans if (trial := entry.trial(wrong)) is not None]
    assert len(tried) == 2, "short segments follow segments, of whose candidates the winner is left"
    assert all(trial.rejected.startswith("outputs off by nan") for trial in tried)
