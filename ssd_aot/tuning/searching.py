"""The search for winners: coordinate by coordinate, within a budget, never measuring twice.

Each group's launches are searched in turn with the operation's other kernels at their present
choice (the winner where there is one already, else the default); one pass. What was measured before
on the same basis, in the record or by a run that was killed, is taken as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ssd_aot.progress import Progress
from ssd_aot.tuning.attempts import Attempts, BudgetSpent, Setting
from ssd_aot.tuning.compiled_candidates import CandidateLaunch
from ssd_aot.tuning.groups import Group, Member
from ssd_aot.tuning.measuring import Chosen
from ssd_aot.tuning.records import Entry, Record, Trial
from ssd_aot.tuning.winning import by_score


@dataclass(frozen=True)
class SearchResult:
    """Entries of the launches that are settled, in no order, and the `left` ones, by name, that
    the budget did not reach."""

    entries: tuple[Entry, ...]
    left: tuple[str, ...]


class Search:
    """One GPU's share of the groups. Groups depend on one another only through the choices of
    companion kernels, so several processes may each take some and their records be merged."""

    def __init__(
        self,
        setting: Setting,
        candidates: Sequence[CandidateLaunch],
        record: Record,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self._setting = setting
        self._record = record
        self._on_progress = on_progress
        usable = {entry.planned.launch: entry for entry in candidates if entry.usable}
        self.chosen = Chosen(usable, {name: entry.usable[0] for name, entry in usable.items()})
        self._entries: dict[str, Entry] = {}
        self._total = self._done = 0

    def run(self, groups: Sequence[Group]) -> SearchResult:
        """Raises `HostError` when the device is lost; the journal has what was measured."""
        members = [member for group in groups for member in group.members]
        self._total = sum(map(_planned_trials, groups))
        for member in members:
            known = self._record.entry(member.launch)
            if known is not None and known.basis == self._setting.basis(member):
                self._setting.reused += len(known.trials)
                self._settle(member, known)
        with suppress(BudgetSpent):
            for group in groups:
                self._search(group)
        left = [str(m.launch) for m in members if m.launch.identity not in self._entries]
        return SearchResult(tuple(self._entries.values()), tuple(left))

    def _search(self, group: Group) -> None:
        first, *others = group.members
        before = self._done
        lead = self._entries.get(first.launch.identity)
        if lead is None:
            lead = self._settle(first, self._search_all(first))
        self._progress(before + len(first.candidates.usable))
        for member in others:
            if member.launch.identity not in self._entries:
                self._settle(member, self._follow(member, lead))
            self._progress(self._done + 2)

    def _search_all(self, member: Member) -> Entry:
        """Every candidate of a representative."""
        attempts = Attempts(self._setting, member, self.chosen)
        for configuration in member.candidates.usable:
            attempts.trial(configuration)
            self._progress(self._done + 1)
        attempts.finals()
        compiled = member.candidates.compiled
        return attempts.entry(
            [Trial(c.configuration, rejected=c.reason) for c in compiled if c.code is None]
        )

    def _follow(self, member: Member, lead: Entry) -> Entry:
        """The default, and the first of the representative's best that is right here."""
        attempts = Attempts(self._setting, member, self.chosen)
        usable = member.candidates.usable
        attempts.trial(usable[0])
        best = [lead.winner] if lead.winner else []
        for configuration in [*best, *by_score(lead.trials)]:
            if configuration in usable and not attempts.trial(configuration).rejected:
                break
        attempts.finals()
        return attempts.entry()

    def _settle(self, member: Member, entry: Entry) -> Entry:
        self._entries[entry.identity] = entry
        if entry.winner is not None and entry.winner in member.candidates.usable:
            self.chosen = self.chosen.with_choice(member.launch, entry.winner)
        return entry

    def _progress(self, done: int) -> None:
        self._done = done
        if self._on_progress is not None:
            elapsed, failed = self._setting.clock.elapsed_s, self._setting.failed
            remaining = elapsed / done * (self._total - done)
            self._on_progress(Progress(done, self._total, failed, elapsed, remaining, "measured"))


def _planned_trials(group: Group) -> int:
    """All of the representative's, and the default and the winner of each other member."""
    first, *others = group.members
    return len(first.candidates.usable) + 2 * len(others)
