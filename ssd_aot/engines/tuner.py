"""The tuning of an engine's own kernels: group by group, right before fast, and remembered.

Each group is searched with the others at the choice so far: the winners of those before it, and the
first candidates that can run of those after it. Of groups of one kin (see `PlannedGroup.kin`) all
candidates of the first are measured, and of the others the default and the first's best that is
right for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ssd_aot.engines.groups import TuningGroup
from ssd_aot.engines.trials import EngineMeasure, GroupTrials
from ssd_aot.engines.tuning_plan import PlannedGroup
from ssd_aot.launches import Configuration
from ssd_aot.progress import Progress
from ssd_aot.tuning.attempts import Attempts, BudgetSpent, Clock, Setting
from ssd_aot.tuning.journal import Journal
from ssd_aot.tuning.record_text import write_record
from ssd_aot.tuning.records import Entry, Record, Session
from ssd_aot.tuning.tune_report import TuneReport
from ssd_aot.tuning.winning import by_score

FOLLOWED = 2
"""Candidates that are planned of a group that follows another."""

OnProgress = Callable[[Progress], None] | None


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
    on_progress: OnProgress = None,
) -> TuneReport:
    """Measure what `record`, read from `out` or new, does not know, and write it there.

    `others` are groups that are not tuned, at the configurations they run with; `engine` is the
    engine's version. Each settled group is on disk before the next, and each measured candidate in
    `out`'s journal. Raises `HostError` when the device is lost.
    """
    clock = clock or Clock()
    journal = Journal(out, record)
    search = _Search(planned, others, measure, session, engine, Setting(journal, clock))
    settled: list[Entry] = []
    try:
        for one in planned:
            entry = record.entry_of(one.group.identity)
            if entry is not None and search.holds(one, entry):
                search.take(one, entry, on_progress)
            else:
                entry = search.run(one, on_progress)
                record = record.with_entries([entry])
                write_record(out, record)
            settled.append(entry)
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
        fresh=search.setting.fresh,
        reused=search.setting.reused,
        elapsed_s=clock.elapsed_s,
        left=tuple(str(one.group) for one in planned[len(settled) :]),
    )


class _Search:
    """The groups in their order, each with the others at the choice so far."""

    def __init__(
        self,
        planned: Sequence[PlannedGroup],
        others: Mapping[TuningGroup, Configuration],
        measure: EngineMeasure,
        session: Session,
        engine: str,
        setting: Setting,
    ) -> None:
        self.setting = setting
        self._planned = planned
        self._measure = measure
        self._session = session
        self._engine = engine
        self._chosen = {**others, **{p.group: p.usable[0].configuration for p in planned}}
        self._leads: dict[object, Entry] = {}
        followers = len(planned) - len({one.kin for one in planned})
        leads = {one.kin: len(one.usable) for one in reversed(planned)}
        self._total = sum(leads.values()) + FOLLOWED * followers
        self._done = 0

    def holds(self, one: PlannedGroup, entry: Entry) -> bool:
        """Whether an entry says of a group what would be measured now, or more."""
        subject = one.searched(self._engine).subject
        alike = replace(subject, judged=entry.judged).basis(self._session)
        return entry.basis == alike and set(entry.judged) >= set(subject.judged)

    def take(self, one: PlannedGroup, entry: Entry, on_progress: OnProgress) -> None:
        """An entry that was measured before."""
        self.setting.count(reused=len(entry.trials))
        self._count(FOLLOWED if one.kin in self._leads else len(one.usable), on_progress)
        self._settle(one, entry)

    def run(self, one: PlannedGroup, on_progress: OnProgress) -> Entry:
        """The candidates of a group that can run: all, or those that its lead tells of."""
        trials = GroupTrials(one, self._measure, self._chosen)
        lead = self._leads.get(one.kin)
        if lead is not None and lead.winner is not None:
            entry = self._follow(one, trials, lead, on_progress)
        else:
            entry = self._try_all(one, trials, on_progress)
        if entry.winner is None:
            # That all are wrong is more likely the fault of a kernel that runs with them.
            mended = self._mended(one, trials)
            if mended is not None:
                self._chosen = mended
                entry = self._try_all(one, trials.with_others(mended), None, afresh=True)
        self._settle(one, entry)
        return entry

    def _try_all(
        self,
        one: PlannedGroup,
        trials: GroupTrials,
        on_progress: OnProgress,
        *,
        afresh: bool = False,
    ) -> Entry:
        searched = one.searched(self._engine)
        attempts = Attempts(self.setting, searched, self._session, trials, afresh=afresh)
        for candidate in one.usable:
            attempts.trial(candidate.configuration)
            self._count(1, on_progress)
        attempts.finals()
        return attempts.entry(one.unusable)

    def _follow(
        self, one: PlannedGroup, trials: GroupTrials, lead: Entry, on_progress: OnProgress
    ) -> Entry:
        """The default, and the first of the lead's best that is right here."""
        attempts = Attempts(self.setting, one.searched(self._engine), self._session, trials)
        usable = [candidate.configuration for candidate in one.usable]
        attempts.trial(usable[0])
        best = [lead.winner] if lead.winner else []
        for configuration in [*best, *by_score(lead.trials)]:
            if configuration in usable and not attempts.trial(configuration).rejected:
                break
        attempts.finals()
        self._count(FOLLOWED, on_progress)
        return attempts.entry(one.unusable)

    def _mended(
        self, one: PlannedGroup, trials: GroupTrials
    ) -> dict[TuningGroup, Configuration] | None:
        """The choices with one of another kernel changed so that the operation is right."""
        first = one.usable[0].configuration
        for other in self._planned:
            if other.group.kernel == one.group.kernel:
                continue
            for candidate in other.usable:
                self.setting.clock.check()
                changed = {**self._chosen, other.group: candidate.configuration}
                if trials.with_others(changed).right(first):
                    return changed
        return None

    def _settle(self, one: PlannedGroup, entry: Entry) -> None:
        self._leads.setdefault(one.kin, entry)
        if entry.winner is not None:
            self._chosen = {**self._chosen, one.group: entry.winner}

    def _count(self, more: int, on_progress: OnProgress) -> None:
        if on_progress is None:
            return
        self._done += more
        elapsed = self.setting.clock.elapsed_s
        remaining = elapsed / self._done * (self._total - self._done)
        failed = self.setting.failed
        on_progress(Progress(self._done, self._total, failed, elapsed, remaining, "measured"))
