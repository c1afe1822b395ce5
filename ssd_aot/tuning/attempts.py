"""The trials of one subject, a launch or a tuning key: known ones recalled, others made, each on
disk before the next."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ssd_aot.errors import HostError
from ssd_aot.launches import Configuration
from ssd_aot.tuning.journal import Journal
from ssd_aot.tuning.measuring import TrialFailed, settle
from ssd_aot.tuning.records import Entry, Session, Subject, Trial
from ssd_aot.tuning.stations import Runs
from ssd_aot.tuning.winning import CONTENDING, winner, within

FINAL_ROUNDS = 3
"""How often those near the best are measured again, in turn, before the winner is named."""


class BudgetSpent(Exception):
    """The time allowed is over; what was measured is kept."""


class DeviceLost(HostError):
    """A candidate ended the context of the process on its GPU; its trial is in the journal."""


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
    """What the trials of all launches share, on every station: `fresh` trials ran now, `reused`
    were known, `failed` were rejected."""

    journal: Journal
    clock: Clock
    fresh: int = 0
    reused: int = 0
    failed: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def count(self, *, fresh: int = 0, reused: int = 0, failed: int = 0) -> None:
        with self._lock:
            self.fresh += fresh
            self.reused += reused
            self.failed += failed


@dataclass(frozen=True)
class Searched:
    """A subject with its candidate list, and the candidate of it that is taken untuned."""

    subject: Subject
    candidates: tuple[Configuration, ...]
    default: Configuration

    def __str__(self) -> str:
        return self.subject.launch


class Attempts:
    """The trials of one subject on one station, which `runs` makes.

    Raises `BudgetSpent` before a trial that the budget does not allow, and `HostError` when the
    device is lost, with the trial that lost it in the journal.
    """

    def __init__(
        self,
        setting: Setting,
        searched: Searched,
        session: Session,
        runs: Runs,
        *,
        afresh: bool = False,
    ) -> None:
        """With `afresh` nothing is known yet, whatever the journal has."""
        self._setting = setting
        self._searched = searched
        self._session = session
        self._runs = runs
        self._basis = searched.subject.basis(session)
        self._known = {} if afresh else setting.journal.trials(self._basis, runs.names)
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
                raise _device_lost(self._searched, trial)
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
            raise _device_lost(self._searched, trial)

    def _keep(self, trial: Trial) -> None:
        self._setting.journal.add(self._basis, self._runs.names, trial)

    def entry(self, others: Sequence[Trial] = ()) -> Entry:
        """The subject's entry, with trials that never ran beside those that did."""
        searched, subject = self._searched, self._searched.subject
        order = searched.candidates
        made = [*self._made.values(), *others]
        return Entry(
            identity=subject.identity,
            kernel=subject.kernel,
            launch=subject.launch,
            session=self._session,
            source=subject.source,
            offered=subject.offered,
            offered_count=len(order),
            workloads=self._runs.names,
            default=searched.default,
            winner=winner(list(self._made.values()), order),
            trials=tuple(sorted(made, key=lambda trial: order.index(trial.configuration))),
            tuning=subject.tuning,
            engine=subject.engine,
            judged=subject.judged,
        )


def _device_lost(searched: Searched, trial: Trial) -> DeviceLost:
    return DeviceLost(
        "a candidate left the GPU unusable for this process",
        where=f"{searched} [{trial.configuration}]",
        found=trial.rejected,
        wanted="a kernel that ends and stays within its memory",
        mend="run again: what was measured is kept, and this candidate is out",
    )
