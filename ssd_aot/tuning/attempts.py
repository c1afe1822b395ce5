"""The trials of one launch: known ones recalled, others made, each on disk before the next."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ssd_aot.errors import HostError
from ssd_aot.launches import Configuration
from ssd_aot.tuning.groups import Member
from ssd_aot.tuning.journal import Journal
from ssd_aot.tuning.measuring import TrialFailed, settle
from ssd_aot.tuning.records import Basis, Entry, Session, Trial, offered_digest
from ssd_aot.tuning.stations import Runs
from ssd_aot.tuning.winning import CONTENDING, winner, within

FINAL_ROUNDS = 3
"""How often those near the best are measured again, in turn, before the winner is named."""


class BudgetSpent(Exception):
    """The time allowed is over; what was measured is kept."""


@dataclass
class Clock:
    """Time since the start, and the budget; `budget_s` None: no limit."""

    budget_s: float | None = None
    now: Callable[[], float] = time.monotonic
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.now()

    @property
    def elapsed_s(self) -> float:
        return self.now() - self.began

    def check(self) -> None:
        if self.budget_s is not None and self.elapsed_s >= self.budget_s:
            raise BudgetSpent


@dataclass
class Setting:
    """What the trials of all launches share, on every station. `sources` maps each kernel to the
    sha256 of its source; `fresh` trials ran now, `reused` were known, `failed` were rejected."""

    journal: Journal
    clock: Clock
    sources: Mapping[str, str]
    fresh: int = 0
    reused: int = 0
    failed: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def count(self, *, fresh: int = 0, reused: int = 0, failed: int = 0) -> None:
        with self._lock:
            self.fresh += fresh
            self.reused += reused
            self.failed += failed

    def basis(self, member: Member, session: Session) -> Basis:
        planned = member.candidates.planned
        return Basis(
            launch=planned.launch.identity,
            source=self.sources[planned.launch.kernel],
            offered=offered_digest(planned.candidates),
            compiler=session.compiler,
            device=session.device,
        )


class Attempts:
    """The trials of one launch on one station, which `runs` makes.

    Raises `BudgetSpent` before a trial that the budget does not allow, and `HostError` when the
    device is lost, with the trial that lost it in the journal.
    """

    def __init__(self, setting: Setting, member: Member, session: Session, runs: Runs) -> None:
        self._setting = setting
        self._member = member
        self._session = session
        self._runs = runs
        self._basis = setting.basis(member, session)
        self._known = setting.journal.trials(self._basis, runs.names)
        self._made: dict[Configuration, Trial] = {}

    def trial(self, configuration: Configuration) -> Trial:
        if configuration in self._made:
            return self._made[configuration]
        setting = self._setting
        trial = self._known.get(configuration)
        if trial is not None:
            setting.count(reused=1)
        else:
            setting.clock.check()
            trial = self._runs.run(configuration)
            setting.count(fresh=1)
            self._keep(trial)
            if trial.rejected and not self._runs.usable():
                raise _device_lost(self._member, trial)
        self._made[configuration] = trial
        setting.count(failed=bool(trial.rejected))
        return trial

    def finals(self) -> None:
        """Measure those near the best again, in turn, so that a drift of the clock hits all."""
        near = within(self._made.values(), CONTENDING)
        again = [c for c in self._made if c in near and self._made[c].repeats == 1]
        if len(near) < 2:
            return
        times: dict[Configuration, list[tuple[float, ...]]] = {c: [] for c in again}
        for _ in range(FINAL_ROUNDS):
            for configuration in list(times):
                self._setting.clock.check()
                try:
                    times[configuration].append(self._runs.time(configuration))
                except TrialFailed as failure:
                    del times[configuration]
                    self._reject(configuration, str(failure))
        for configuration, measured in times.items():
            self._made[configuration] = settle(self._made[configuration], measured)
            self._keep(self._made[configuration])

    def _reject(self, configuration: Configuration, reason: str) -> None:
        trial = replace(self._made[configuration], times_us=(), rejected=reason)
        self._made[configuration] = trial
        self._setting.count(failed=1)
        self._keep(trial)
        if not self._runs.usable():
            raise _device_lost(self._member, trial)

    def _keep(self, trial: Trial) -> None:
        self._setting.journal.add(self._basis, self._runs.names, trial)

    def entry(self, others: Sequence[Trial] = ()) -> Entry:
        """The launch's entry, with trials that never ran beside those that did."""
        planned = self._member.candidates.planned
        order = planned.candidates
        made = [*self._made.values(), *others]
        return Entry(
            identity=planned.launch.identity,
            kernel=planned.launch.kernel,
            launch=str(planned.launch),
            session=self._session,
            source=self._basis.source,
            offered=self._basis.offered,
            offered_count=len(order),
            workloads=self._runs.names,
            default=self._member.candidates.usable[0],
            winner=winner(list(self._made.values()), order),
            trials=tuple(sorted(made, key=lambda trial: order.index(trial.configuration))),
        )


def _device_lost(member: Member, trial: Trial) -> HostError:
    return HostError(
        "a candidate left the GPU unusable for this process",
        where=f"{member.launch} [{trial.configuration}]",
        found=trial.rejected,
        wanted="a kernel that ends and stays within its memory",
        mend="run again: what was measured is kept, and this candidate is out",
    )
