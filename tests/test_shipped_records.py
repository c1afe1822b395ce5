"""The tuning records that come with the package fit the kernels that come with it."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from ssd_aot.candidates import candidates
from ssd_aot.plan import make_plan
from ssd_aot.sources.builtin import kernel_sources
from ssd_aot.spec import load_spec, shipped_spec
from ssd_aot.targets import target
from ssd_aot.tuning.record_text import read_record
from ssd_aot.tuning.records import Record, offered_digest

FILES = sorted(Path(str(resources.files("ssd_aot") / "tuning_records")).glob("*.json"))


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def record(request: pytest.FixtureRequest) -> Record:
    return read_record(request.param)


def test_there_is_a_record_for_the_h200() -> None:
    assert "h200.builtin" in [path.stem for path in FILES]


def test_its_kernels_and_candidates_are_the_ones_here(record: Record) -> None:
    """Else every choice from it would be borrowed (C33)."""
    sources = dict(kernel_sources())
    gpu = target(record.gpu)
    plan = make_plan(load_spec([shipped_spec("default")]), [gpu])
    entries = [e for p in plan.launches if (e := record.entry(p.launch)) is not None]
    launches = {p.launch.identity: p.launch for p in plan.launches}

    assert len(entries) == len(record.entries)
    for entry in entries:
        assert entry.source == sources[entry.kernel]
        assert entry.offered == offered_digest(candidates(launches[entry.identity], gpu))


def test_no_wrong_candidate_won(record: Record) -> None:
    """C50 to C53: a winner was judged right, and what was judged wrong says why."""
    for entry in record.entries:
        assert entry.winner is not None
        trial = entry.trial(entry.winner)
        assert trial is not None and not trial.rejected
        assert trial.error is not None and trial.error < 6e-3
