"""The tuning of an engine's own kernels: group by group, right before fast, and remembered.

Each group is searched with the others at the choice so far: the winners of those before it, and the
first candidates that can run of those after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ssd_aot.engines.groups import TuningGroup
from ssd_aot.engines.trials import EngineMeasure, GroupTrials
from ssd_aot.engines.tuning_plan import PlannedGroup
from ssd_aot.errors import UsageError
from ssd_aot.launches import Configuration
from ssd_aot.progress import Progress
from ssd_aot.tuning.attempts import Attempts, BudgetSpent, Clock, Setting
from ssd_aot.tuning.journal import Journal
from ssd_aot.tuning.record_text import read_record, write_record
from ssd_aot.tuning.records import Entry, Record, Session, Subject
from ssd_aot.tuning.tune_report import TuneReport


def tune_groups(
    planned: Sequence[PlannedGroup],
    others: Mapping[TuningGroup, Configuration],
    measure: EngineMeasure,
    session: Session,
    record: Record,
    out: Path,
    *,
    engine: str,
    clock: Clock | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> TuneReport:
    """Measure what `record`, read from `out` or new, does not know, and write it there.

    `others` are groups that are not tuned, at the configurations they run with; `engine` is the
    engine's version. Each settled group is on disk before the next, and each measured candidate in
    `out`'s journal. Raises `HostError` when the device is lost.
    """
    clock = clock or Clock()
    journal = Journal(out, record)
    setting = Setting(journal, clock)
    chosen = {**others, **{p.group: p.usable[0].configuration for p in planned}}
    total = sum(len(p.usable) for p in planned)
    done = 0

    def progress(more: int) -> None:
        nonlocal done
        done += more
        if on_progress is not None and done:
            elapsed = clock.elapsed_s
            remaining = elapsed / done * (total - done)
            on_progress(Progress(done, total, setting.failed, elapsed, remaining, "measured"))

    settled: list[Entry] = []
    try:
        for one in planned:
            searched = one.searched(engine)
            entry = record.entry_of(searched.subject.identity)
            if entry is not None and _holds(entry, searched.subject, session):
                setting.count(reused=len(entry.trials))
                progress(len(one.usable))
            else:
                attempts = Attempts(setting, searched, session, GroupTrials(one, measure, chosen))
                for candidate in one.usable:
                    attempts.trial(candidate.configuration)
                    progress(1)
                attempts.finals()
                entry = attempts.entry(one.unusable)
                record = record.with_entries([entry])
                write_record(out, record)
            settled.append(entry)
            if entry.winner is not None:
                chosen[one.group] = entry.winner
    except BudgetSpent:
        pass
    else:
        write_record(out, record)
        journal.discard()
    finally:
        journal.close()
    return TuneReport(
        path=out,
        tuned=tuple((None, entry) for entry in sorted(settled, key=lambda e: (e.kernel, e.launch))),
        form_rule=None,
        fresh=setting.fresh,
        reused=setting.reused,
        elapsed_s=clock.elapsed_s,
        left=tuple(str(one.group) for one in planned[len(settled) :]),
    )


def _holds(entry: Entry, subject: Subject, session: Session) -> bool:
    """Whether an entry says of a subject what would be measured now, or more."""
    alike = replace(subject, judged=entry.judged)
    return entry.basis == alike.basis(session) and set(entry.judged) >= set(subject.judged)


def record_at(out: Path, gpu: str, source: str) -> Record:
    """The record there, or a new one. Raises `UsageError` for that of another GPU or source."""
    record = read_record(out) if out.exists() else Record(gpu, source)
    if (record.gpu, record.source) != (gpu, source):
        raise UsageError(
            "this record is another's",
            where=str(out),
            found=record.name,
            wanted=f"{gpu}.{source}",
            mend="write to another file",
        )
    return record
