"""Where candidates run: one GPU, in this process or in one of its own, here or on another host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ssd_aot.errors import HostError
from ssd_aot.launches import Configuration
from ssd_aot.tuning.forms import form_times
from ssd_aot.tuning.groups import Call, Member
from ssd_aot.tuning.measuring import Chosen, Measure, Trials
from ssd_aot.tuning.records import Session, Trial


class StationLost(HostError):
    """A station that can measure no more: its GPU is gone, full, or another than was wanted."""


class Runs(Protocol):
    """The trials of one launch on one station; each as in `measuring.Trials`."""

    @property
    def names(self) -> tuple[str, ...]: ...

    def run(self, configuration: Configuration) -> Trial: ...

    def time(self, configuration: Configuration) -> tuple[float, ...]: ...

    def usable(self) -> bool:
        """Whether the station goes on after a candidate that was rejected."""
        ...


class Station(Protocol):
    """One GPU. Used by one thread at a time, but closed from any."""

    @property
    def name(self) -> str: ...

    @property
    def session(self) -> Session:
        """Known once it has started."""
        ...

    def start(self) -> None:
        """Raises `StationLost` where the GPU cannot be used."""
        ...

    def runs(self, member: Member, chosen: Chosen) -> Runs: ...

    def form_times(
        self, calls: Sequence[Call], lengths: tuple[int, ...], chosen: Chosen
    ) -> tuple[float, ...]:
        """Device times, in microseconds, of a batch under each of the calls."""
        ...

    def close(self) -> None: ...


class OwnStation:
    """The station that is this process: a candidate that ends its context ends the run."""

    name = "this process"

    def __init__(self, measure: Measure, session: Session, multiprocessors: int) -> None:
        self.session = session
        self._measure = measure
        self._multiprocessors = multiprocessors

    def start(self) -> None: ...

    def runs(self, member: Member, chosen: Chosen) -> Trials:
        return Trials(member, self._measure, self._multiprocessors, chosen)

    def form_times(
        self, calls: Sequence[Call], lengths: tuple[int, ...], chosen: Chosen
    ) -> tuple[float, ...]:
        return form_times(calls, lengths, chosen, self._measure)

    def close(self) -> None: ...
