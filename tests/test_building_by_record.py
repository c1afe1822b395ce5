"""A build takes what was measured, says where it comes from, and builds anew when that changes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import SHORT, ssd_aot
from spec_builders import write_spec

from ssd_aot.bundle.store import Bundle
from ssd_aot.launches import Configuration
from ssd_aot.plan import PlannedLaunch, make_plan
from ssd_aot.sources.builtin import kernel_sources
from ssd_aot.spec import load_spec
from ssd_aot.targets import target
from ssd_aot.triton_compat import toolchain
from ssd_aot.tuning.record_text import write_record
from ssd_aot.tuning.records import Entry, Record, Session, Trial, offered_digest


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[PlannedLaunch, ...]:
    spec = load_spec([write_spec(tmp_path_factory.mktemp("spec"), SHORT)])
    return make_plan(spec, [target("h200")]).launches


def record(planned: tuple[PlannedLaunch, ...], gpu: str = "h200", **changes: Any) -> Record:
    """A record in which the second candidate of every launch won."""
    session = Session.of(toolchain(), date="2026-01-02T03:04:05Z", device="d", driver="570.1")
    return Record(gpu, "builtin").with_entries(
        replace(_entry(one, session), **changes) for one in planned
    )


def _entry(planned: PlannedLaunch, session: Session) -> Entry:
    default, best = planned.candidates[:2]
    return Entry(
        identity=planned.launch.identity, kernel=planned.launch.kernel,
        launch=str(planned.launch), session=session,
        source=dict(kernel_sources())[planned.launch.kernel],
        offered=offered_digest(planned.candidates), offered_count=len(planned.candidates),
        workloads=("128h 1x256",), default=default, winner=best,
        trials=(Trial(default, (20.0,)), Trial(best, (16.0,))),
    )  # fmt: skip


def build(tmp_path: Path, *more: str) -> dict[str, Any]:
    spec = write_spec(tmp_path, SHORT)
    result = ssd_aot("build", "--gpu", "h200", "--spec", spec, "--out", tmp_path / "b",
                     "--no-tune", "--json", *more)  # fmt: skip
    assert result.exit_code == 0, result.stderr
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def chosen(tmp_path: Path) -> dict[str, Configuration]:
    manifest = Bundle.open(tmp_path / "b").manifest
    return {entry.launch.identity: entry.configuration for entry in manifest.variants}


def test_a_record_changes_the_choice_and_the_bundle_and_no_record_changes_it_back(
    tmp_path: Path, planned: tuple[PlannedLaunch, ...]
) -> None:
    path = tmp_path / "h200.json"
    write_record(path, record(planned))
    untuned = build(tmp_path)

    tuned = build(tmp_path, "--tuning", str(path), "--require-tuned")
    again = build(tmp_path, "--tuning", str(path))
    winners = chosen(tmp_path)
    back = build(tmp_path)

    assert untuned["tuning"] == {"default": len(planned)}
    assert tuned["tuning"] == {"measured": len(planned)}
    assert tuned["records"] == {str(path): len(planned)}
    assert winners == {one.launch.identity: one.candidates[1] for one in planned}
    assert again["unchanged"] and again["digest"] == tuned["digest"]
    assert back["digest"] == untuned["digest"] and not back["unchanged"]


def test_a_borrowed_choice_is_said_and_refused_where_tuned_ones_are_required(
    tmp_path: Path, planned: tuple[PlannedLaunch, ...]
) -> None:
    path = tmp_path / "h200.json"
    write_record(path, record(planned, source="0" * 64))

    report = build(tmp_path, "--tuning", str(path))
    refused = ssd_aot("build", "--gpu", "h200", "--spec", tmp_path / "spec.yaml", "--out",
                      tmp_path / "c", "--no-tune", "--tuning", path, "--require-tuned")  # fmt: skip

    status = "borrowed from h200 (other kernel sources)"
    assert report["tuning"] == {status: len(planned)}
    assert refused.exit_code == 1
    assert status in refused.stderr
    assert not (tmp_path / "c").exists()
