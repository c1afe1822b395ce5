"""Tuning on a real GPU. SSD_AOT_TEST_CANDIDATES names what `tune --compile-only` wrote for it;
without it a few candidates are compiled here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from device_candidates import few_candidates
from torch import Tensor
from tuning_builders import launch_of

from ssd_aot.bundle.manifest import VariantEntry
from ssd_aot.launches import Configuration
from ssd_aot.layouts import Blocking, Counts, Form, ScanLayout
from ssd_aot.ops.execution import Executor
from ssd_aot.targets import Target
from ssd_aot.tuning.compiled_candidates import CompiledCandidates
from ssd_aot.tuning.device_measuring import DeviceMeasure, driver_version
from ssd_aot.tuning.host import process_stations
from ssd_aot.tuning.record_text import read_record
from ssd_aot.tuning.records import Session
from ssd_aot.tuning.station_host import OpenedDevice
from ssd_aot.tuning.tuner import TuneReport, now, tune, tune_on


@pytest.fixture(scope="module")
def candidates(tmp_path_factory: pytest.TempPathFactory) -> CompiledCandidates:
    return few_candidates(tmp_path_factory.mktemp("compiled") / "candidates")


def run(candidates: CompiledCandidates, measure: DeviceMeasure, out: Path) -> TuneReport:
    session = Session.of(
        candidates.toolchain, date=now(), device=measure.name, driver=driver_version()
    )
    return tune(candidates, measure, session, out)


def test_every_launch_gets_a_right_winner_and_a_second_run_measures_nothing(
    candidates: CompiledCandidates, tmp_path: Path
) -> None:
    measure = DeviceMeasure(candidates.target, candidates.cubins)

    first = run(candidates, measure, tmp_path / "r.json")
    second = run(candidates, measure, tmp_path / "r.json")

    record = read_record(tmp_path / "r.json")
    assert not first.left and first.fresh > 0 and second.fresh == 0
    assert len(record.entries) == len(candidates.launches)
    for entry in record.entries:
        best = entry.trial(entry.winner)
        assert best is not None and best.error is not None and best.error < 6e-3
        assert all(1 < time < 1e5 for time in best.times_us)
    assert record.forms and record.entries[0].session.device == torch.cuda.get_device_name()
    print(first)


@dataclass
class Spoiled:
    """A right executor whose output one candidate spoils."""

    inner: Executor
    blocking: Blocking

    def run(self, tensors: Mapping[str, Tensor], layout: ScanLayout, counts: Counts) -> None:
        self.inner.run(tensors, layout, counts)
        tensors["out"][-1] = float("nan")


def test_a_wrong_candidate_does_not_win(candidates: CompiledCandidates, tmp_path: Path) -> None:
    wrong = launch_of(candidates, "scan").usable[0]

    class Measure(DeviceMeasure):
        def executor(self, form: Form, variants: Sequence[VariantEntry]) -> Executor:
            inner = super().executor(form, variants)
            return Spoiled(inner, inner.blocking) if _uses(variants, wrong) else inner

    run(candidates, Measure(candidates.target, candidates.cubins), tmp_path / "r.json")

    scans = [e for e in read_record(tmp_path / "r.json").entries if e.kernel == "scan"]
    assert scans
    for entry in scans:
        rejected = entry.trial(wrong)
        assert entry.winner not in (None, wrong)
        assert rejected is not None and "off by nan" in rejected.rejected


@dataclass
class OutOfRange:
    """Ends the CUDA context of its process."""

    blocking: Blocking

    def run(self, tensors: Mapping[str, Tensor], layout: ScanLayout, counts: Counts) -> None:
        out = tensors["out"]
        out.index_select(0, torch.tensor([out.shape[0]], device=out.device))
        torch.cuda.synchronize()


def open_with_a_killer(
    target: Target, cubins: Mapping[str, bytes], index: int, *, killer: Configuration
) -> OpenedDevice:
    class Measure(DeviceMeasure):
        def executor(self, form: Form, variants: Sequence[VariantEntry]) -> Executor:
            inner = super().executor(form, variants)
            return OutOfRange(inner.blocking) if _uses(variants, killer) else inner

    measure = Measure(target, cubins, index)
    return OpenedDevice(measure, measure.name, driver_version())


def test_a_candidate_that_ends_the_context_is_rejected_and_the_run_finishes(
    candidates: CompiledCandidates, tmp_path: Path
) -> None:
    killer = launch_of(candidates, "scan").usable[1]
    date = now()
    stations = process_stations(candidates, [0], partial(open_with_a_killer, killer=killer), date)

    report = tune_on(stations, candidates, tmp_path / "r.json", date=date)

    assert not report.left
    scans = [e for e in read_record(tmp_path / "r.json").entries if e.kernel == "scan"]
    rejections = [trial for e in scans for trial in e.trials if trial.configuration == killer]
    assert rejections and all("CUDA error" in trial.rejected for trial in rejections)
    assert all(entry.winner not in (None, killer) for entry in scans)


def _uses(variants: Sequence[VariantEntry], configuration: Configuration) -> bool:
    return any(v.launch.kernel == "scan" and v.configuration == configuration for v in variants)
