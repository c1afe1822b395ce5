"""Which launch is searched next, by whichever station is free.

A launch is measured with the operation's earlier kernels at their winners and its later kernels at
their defaults (`KERNEL_ORDER`), so it waits for the former alone. What is found depends neither on
the order in which stations come for work nor on how many there are: one station alone takes the
units in their order, several take what is ready.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ssd_aot.launches import Launch
from ssd_aot.tuning.compiled_candidates import CandidateLaunch
from ssd_aot.tuning.groups import KERNEL_ORDER, Group, Member
from ssd_aot.tuning.measuring import Chosen
from ssd_aot.tuning.records import Entry


@dataclass(eq=False)
class Unit:
    """A launch to be searched on one GPU. `lead` is the representative of its group, None for the
    representative itself; `trials` how many are planned, of which `counted` were."""

    member: Member
    lead: Launch | None
    trials: int
    counted: int = 0


class Schedule:
    """Units handed out and settled; safe to use from several threads.

    `known` tells the entry of a launch that needs no measuring, if there is one.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        candidates: Sequence[CandidateLaunch],
        known: Callable[[Member], Entry | None],
    ) -> None:
        usable = {entry.planned.launch: entry for entry in candidates if entry.usable}
        self._default = Chosen(usable, {name: entry.usable[0] for name, entry in usable.items()})
        self._entries: dict[Launch, Entry] = {}
        self._changed = threading.Condition()
        self._stopped = False
        self._under_way = 0
        self._waiting = [unit for group in groups for unit in _units(group)]
        self._scheduled = {unit.member.launch for unit in self._waiting}
        self.total = sum(unit.trials for unit in self._waiting)
        self.done = 0
        for unit in list(self._waiting):
            entry = known(unit.member)
            if entry is not None:
                self._waiting.remove(unit)
                self._settle(unit, entry)

    def take(self) -> Unit | None:
        """The next unit that is ready, waiting for one; None when there is nothing left to do."""
        with self._changed:
            while not self._stopped:
                ready = next((unit for unit in self._waiting if self._ready(unit)), None)
                if ready is not None:
                    self._waiting.remove(ready)
                    self._under_way += 1
                    return ready
                if not self._under_way:
                    return None
                self._changed.wait()
        return None

    def settle(self, unit: Unit, entry: Entry) -> None:
        with self._changed:
            self._under_way -= 1
            self._settle(unit, entry)
            self._changed.notify_all()

    def give_back(self, unit: Unit) -> None:
        """A unit that was taken and not settled, for another station or another run."""
        with self._changed:
            self._under_way -= 1
            self._waiting.insert(0, unit)
            self._changed.notify_all()

    def stop(self) -> None:
        """Hand nothing out any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def count_trial(self, unit: Unit) -> None:
        with self._changed:
            if unit.counted < unit.trials:
                unit.counted += 1
                self.done += 1

    def chosen(self, unit: Unit) -> Chosen:
        """The companions' configurations while a unit is measured."""
        earlier = {launch for launch in self._companions(unit) if launch in self._entries}
        return self._with_winners(earlier).only(unit.member.calls)

    @property
    def winners(self) -> Chosen:
        """Every launch at its winner, where it has one, else at its default."""
        return self._with_winners(set(self._entries))

    def entry(self, launch: Launch) -> Entry:
        return self._entries[launch]

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(self._entries.values())

    @property
    def left(self) -> tuple[str, ...]:
        """The launches that are not settled, by name."""
        return tuple(str(unit.member.launch) for unit in self._waiting)

    def _settle(self, unit: Unit, entry: Entry) -> None:
        self._entries[unit.member.launch] = entry
        self.done += unit.trials - unit.counted
        unit.counted = unit.trials

    def _ready(self, unit: Unit) -> bool:
        needed = self._companions(unit) & self._scheduled
        if unit.lead is not None:
            needed.add(unit.lead)
        return needed <= self._entries.keys()

    def _companions(self, unit: Unit) -> set[Launch]:
        """The launches of earlier kernels that run with it."""
        place = KERNEL_ORDER.index(unit.member.launch.kernel)
        launches = {launch for call in unit.member.calls for launch in call.launches}
        return {launch for launch in launches if KERNEL_ORDER.index(launch.kernel) < place}

    def _with_winners(self, launches: set[Launch]) -> Chosen:
        chosen = self._default
        for launch in launches:
            winner = self._entries[launch].winner
            candidates = chosen.candidates.get(launch)
            if winner is not None and candidates is not None and winner in candidates.usable:
                chosen = chosen.with_choice(launch, winner)
        return chosen


def _units(group: Group) -> list[Unit]:
    """All candidates of the representative; of each other member the default and the winner."""
    first, *others = group.members
    lead = Unit(first, None, len(first.candidates.usable))
    return [lead, *(Unit(member, first.launch, 2) for member in others)]
