"""`ssd-aot tune`: candidates that are compiled already, measured and remembered.

Nothing here needs Triton: where the code objects were compiled elsewhere, the GPU's host may do
without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from ssd_aot.progress import Progress
from ssd_aot.tuning.attempts import Clock, Setting
from ssd_aot.tuning.choices import SOURCE
from ssd_aot.tuning.compiled_candidates import CompiledCandidates
from ssd_aot.tuning.form_rules import form_rule
from ssd_aot.tuning.form_timing import FormTiming
from ssd_aot.tuning.forms import form_pairs
from ssd_aot.tuning.groups import calls_of, make_groups
from ssd_aot.tuning.journal import Journal
from ssd_aot.tuning.measuring import Measure
from ssd_aot.tuning.record_text import read_record, record_at, write_record
from ssd_aot.tuning.records import Record, Session, merge
from ssd_aot.tuning.searching import Search
from ssd_aot.tuning.stations import OwnStation, Station
from ssd_aot.tuning.team import Team
from ssd_aot.tuning.tune_report import TuneReport

__all__ = ["TuneReport", "merge_files", "now", "tune", "tune_on"]


def tune(
    candidates: CompiledCandidates,
    measure: Measure,
    session: Session,
    out: Path,
    *,
    budget_s: float | None = None,
    clock: Clock | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> TuneReport:
    """`tune_on` one GPU, in this process."""
    station = OwnStation(measure, session, candidates.target.multiprocessors)
    return tune_on(
        [station], candidates, out, date=session.date, budget_s=budget_s, clock=clock,
        on_progress=on_progress,
    )  # fmt: skip


def tune_on(
    stations: Sequence[Station],
    candidates: CompiledCandidates,
    out: Path,
    *,
    date: str,
    budget_s: float | None = None,
    clock: Clock | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_notice: Callable[[str], None] | None = None,
) -> TuneReport:
    """Measure every launch's candidates and write, or extend, the record at `out`.

    The stations share the launches; which of them measured what decides nothing. `on_notice` is
    told of stations that are lost while others go on. A killed or stopped run leaves `out`'s
    journal, from which the next goes on. Raises `UsageError` when `out` is another GPU's record,
    and `HostError` when the last station is lost.
    """
    clock = clock or Clock(budget_s)
    target = candidates.target
    record = record_at(out, target.name, SOURCE, else_of="another GPU's")
    journal = Journal(out, record)
    setting = Setting(journal, clock)
    groups = make_groups(candidates.signatures, candidates.launches)
    search = Search(
        setting, groups, candidates.launches, dict(candidates.sources), record, on_progress
    )
    team = Team(stations, on_notice)
    try:
        team.run(search.work)
        found = search.schedule
        record = record.with_entries(found.entries)
        # With other winners the forms' times are others, too.
        known = record.forms if not setting.fresh else ()
        pairs = form_pairs(
            calls_of(candidates.signatures), found.winners.candidates, {p.place for p in known}
        )
        timing = FormTiming(pairs, found.winners, clock, date)
        team.run(timing.work)
        record = merge(record, replace(Record(target.name, SOURCE), forms=timing.points))
        write_record(out, record)
        if not found.left:
            journal.discard()
    finally:
        search.stop()
        team.close()
        journal.close()
    launches = {
        entry.planned.launch.identity: entry.planned.launch for entry in candidates.launches
    }
    tuned = sorted(found.entries, key=lambda entry: (entry.kernel, entry.launch))
    return TuneReport(
        path=out,
        tuned=tuple((launches[entry.identity], entry) for entry in tuned),
        form_rule=form_rule(record.forms, target.multiprocessors),
        fresh=setting.fresh,
        reused=setting.reused,
        elapsed_s=clock.elapsed_s,
        left=found.left if timing.finished else (*found.left, "forms"),
    )


def merge_files(paths: list[Path], out: Path) -> Record:
    """Merge records into `out`, whatever their order. Raises `UsageError` for unlike ones."""
    first, *others = (read_record(path) for path in paths)
    merged = first
    for other in others:
        merged = merge(merged, other)
    write_record(out, merged)
    return merged


def now() -> str:
    """The date of a session, UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
