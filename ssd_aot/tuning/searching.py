"""The search for winners: coordinate by coordinate, within a budget, never measuring twice.

Each launch is searched with the operation's other kernels at the choice that `schedule` says; one
pass. What was measured before on the same basis, in the record or by a run that was killed, is
taken as it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from ssd_aot.progress import Progress
from ssd_aot.tuning.attempts import Attempts, BudgetSpent, Searched, Setting
from ssd_aot.tuning.compiled_candidates import CandidateLaunch
from ssd_aot.tuning.groups import Group, Member
from ssd_aot.tuning.records import Entry, Record, Session, Subject, Trial, offered_digest
from ssd_aot.tuning.schedule import Schedule, Unit
from ssd_aot.tuning.stations import Station
from ssd_aot.tuning.winning import by_score


class Search:
    """A run's groups, searched by any number of stations at once."""

    def __init__(
        self,
        setting: Setting,
        groups: Sequence[Group],
        candidates: Sequence[CandidateLaunch],
        sources: Mapping[str, str],
        record: Record,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        """`sources` maps each kernel to the sha256 of its source."""
        self._setting = setting
        self._sources = sources
        self._groups = groups
        self._candidates = candidates
        self._record = record
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self._schedule: Schedule | None = None

    @property
    def schedule(self) -> Schedule:
        assert self._schedule is not None, "a station works first"
        return self._schedule

    def work(self, station: Station) -> None:
        """Search what is next until nothing is left or the budget is spent.

        Raises `HostError` when the device is lost; the journal has what was measured.
        """
        schedule = self._scheduled(station.session)
        self._progress()
        while (unit := schedule.take()) is not None:
            try:
                entry = self._search(station, unit)
            except BudgetSpent:
                schedule.give_back(unit)
                schedule.stop()
            except BaseException:
                schedule.give_back(unit)
                raise
            else:
                schedule.settle(unit, entry)
                self._progress()

    def stop(self) -> None:
        """Let no station take more."""
        with self._lock:
            if self._schedule is not None:
                self._schedule.stop()

    def _scheduled(self, session: Session) -> Schedule:
        """The schedule of all stations, from what the record knows of the first one's GPU."""

        def known(member: Member) -> Entry | None:
            entry = self._record.entry(member.launch)
            if entry is None or entry.basis != self._subject(member).basis(session):
                return None
            self._setting.count(reused=len(entry.trials))
            return entry

        with self._lock:
            if self._schedule is None:
                self._schedule = Schedule(self._groups, self._candidates, known)
            return self._schedule

    def _search(self, station: Station, unit: Unit) -> Entry:
        member = unit.member
        runs = station.runs(member, self.schedule.chosen(unit))
        usable = member.candidates.usable
        searched = Searched(self._subject(member), member.candidates.planned.candidates, usable[0])
        attempts = Attempts(self._setting, searched, station.session, runs)
        if unit.lead is None:
            return self._search_all(attempts, unit)
        return self._follow(attempts, unit, self.schedule.entry(unit.lead))

    def _subject(self, member: Member) -> Subject:
        planned = member.candidates.planned
        return Subject(
            identity=planned.launch.identity,
            kernel=planned.launch.kernel,
            launch=str(planned.launch),
            source=self._sources[planned.launch.kernel],
            offered=offered_digest(planned.candidates),
        )

    def _search_all(self, attempts: Attempts, unit: Unit) -> Entry:
        """Every candidate of a representative."""
        for configuration in unit.member.candidates.usable:
            attempts.trial(configuration)
            self._progress(unit)
        attempts.finals()
        compiled = unit.member.candidates.compiled
        return attempts.entry(
            [Trial(c.configuration, rejected=c.reason) for c in compiled if c.code is None]
        )

    def _follow(self, attempts: Attempts, unit: Unit, lead: Entry) -> Entry:
        """The default, and the first of the representative's best that is right here."""
        usable = unit.member.candidates.usable
        attempts.trial(usable[0])
        self._progress(unit)
        best = [lead.winner] if lead.winner else []
        for configuration in [*best, *by_score(lead.trials)]:
            if configuration in usable and not attempts.trial(configuration).rejected:
                break
        attempts.finals()
        return attempts.entry()

    def _progress(self, unit: Unit | None = None) -> None:
        schedule, setting = self.schedule, self._setting
        if unit is not None:
            schedule.count_trial(unit)
        if self._on_progress is None or not schedule.done:
            return
        with self._lock:
            done, total, elapsed = schedule.done, schedule.total, setting.clock.elapsed_s
            remaining = elapsed / done * (total - done)
            self._on_progress(Progress(done, total, setting.failed, elapsed, remaining, "measured"))
