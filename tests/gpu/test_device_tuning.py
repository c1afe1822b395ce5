"""Tuning on a real GPU. SSD_AOT_TEST_CANDIDATES names what `tune --compile-only` wrote for it;
without it a few candidates are compiled here."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from signature_builders import signature
from torch import Tensor
from tuning_builders import launch_of

from ssd_aot.bundle.manifest import VariantEntry
from ssd_aot.launches import Configuration, Launch
from ssd_aot.layouts import Blocking, Counts, Form, ScanLayout
from ssd_aot.ops.execution import Executor
from ssd_aot.plan import PlannedLaunch
from ssd_aot.targets import target_for_device
from ssd_aot.tuning.compiled_candidates import CandidateLaunch, CompiledCandidates
from ssd_aot.tuning.device_measuring import DeviceMeasure, driver_version
from ssd_aot.tuning.groups import calls_of
from ssd_aot.tuning.record_text import read_record
from ssd_aot.tuning.records import Session
from ssd_aot.tuning.tuner import TuneReport, now, tune

MOST = 3
SIGNATURES = [
    signature(model="m", nheads=heads, tp=128 // heads, num_seqs=(1, 64), has_initstates=has)
    for heads in (128, 16)
    for has in (False, True)
]


@pytest.fixture(scope="module")
def candidates(tmp_path_factory: pytest.TempPathFactory) -> CompiledCandidates:
    """The launches of one geometry with the first candidates of each."""
    given = os.environ.get("SSD_AOT_TEST_CANDIDATES")
    if not given:
        return _compiled(tmp_path_factory.mktemp("compiled") / "candidates")
    whole = CompiledCandidates.read(Path(given))
    wanted = {launch for call in calls_of(SIGNATURES) for launch in call.launches}
    launches = [_cut(e) for e in whole.launches if e.planned.launch in wanted]
    needed = {name for entry in launches for name in entry.planned.signatures}
    signatures = tuple(s for s in whole.signatures if s.id in needed and s.headdim == 64)
    return replace(whole, launches=tuple(launches), signatures=signatures)


def _cut(entry: CandidateLaunch) -> CandidateLaunch:
    planned = replace(entry.planned, candidates=entry.planned.candidates[:MOST])
    return CandidateLaunch(planned, entry.compiled[:MOST])


def _compiled(place: Path) -> CompiledCandidates:
    from ssd_aot.candidates import candidates as offered
    from ssd_aot.tuning.candidate_compiling import compile_candidates

    gpu = target_for_device(torch.cuda.get_device_name(), torch.cuda.get_device_capability())
    assert gpu is not None, "this GPU is not among the targets"
    needing: dict[Launch, list[str]] = {}
    for call in calls_of(SIGNATURES):
        for launch in call.launches:
            needing.setdefault(launch, []).append(call.signature.id)
    planned = [
        PlannedLaunch(launch, gpu, offered(launch, gpu)[:MOST], tuple(dict.fromkeys(ids)))
        for launch, ids in needing.items()
    ]
    return compile_candidates(SIGNATURES, planned, gpu, place, jobs=os.cpu_count() or 2)


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


def _uses(variants: Sequence[VariantEntry], configuration: Configuration) -> bool:
    return any(v.launch.kernel == "scan" and v.configuration == configuration for v in variants)
