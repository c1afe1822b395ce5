"""A GPU in a process of its own: a candidate that ends the process or its context costs no more
than that candidate, for the process is started again and the search goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ssd_aot.bundle.manifest import Toolchain
from ssd_aot.compilation.calling import Worker, WorkerGone
from ssd_aot.errors import HostError
from ssd_aot.launches import Configuration
from ssd_aot.targets import Target
from ssd_aot.tuning import station_host
from ssd_aot.tuning.groups import Call, Member
from ssd_aot.tuning.measuring import Chosen, TrialFailed
from ssd_aot.tuning.records import Session, Trial
from ssd_aot.tuning.station_host import OpenDevice
from ssd_aot.tuning.stations import StationLost
from ssd_aot.tuning.workloads import workloads

START_LIMIT_S = 300.0
"""For a process to import torch and open its GPU, on a cold file system."""

TRIAL_LIMIT_S = 300.0
"""For one trial, the first of a launch with the float64 references of all its checks included; on
an H200 the slowest takes seconds. One that takes longer hangs."""

ATTEMPTS = 2
"""A process that ends may have been killed from outside: the candidate is tried once more."""


@dataclass(frozen=True)
class Opening:
    """What a station's process opens: `index` is the GPU's among those that process sees."""

    target: Target
    index: int
    open_device: OpenDevice


class RemoteStation:
    """`hire` starts a process for this GPU. `cubins` are all candidates' code by sha256, of which
    each launch's own are sent along with it."""

    def __init__(
        self,
        name: str,
        hire: Callable[[], Worker],
        opening: Opening,
        cubins: Mapping[str, bytes],
        toolchain: Toolchain,
        date: str,
    ) -> None:
        self.name = name
        self.session = Session.of(toolchain, date=date, device="", driver="")
        self.target = opening.target
        self._hire = hire
        self._opening = opening
        self._cubins = cubins
        self._worker: Worker | None = None
        self._open: RemoteRuns | None = None
        self._closed = False

    def start(self) -> None:
        try:
            worker = self._worker = self._hire()
            if self._closed:
                raise WorkerGone("closed before it began")
            opening = self._opening
            device, driver = worker.call(
                station_host.begin, opening.target, opening.index, opening.open_device,
                limit_s=START_LIMIT_S,
            )  # fmt: skip
        except WorkerGone as gone:
            self.close()
            raise StationLost(
                "the process that was to measure ended before it could",
                where=self.name,
                found=str(gone),
                mend="run again: what was measured is kept",
            ) from gone
        except HostError as error:
            self.close()
            raise self._lost(error) from error
        self.session = replace(self.session, device=device, driver=driver)

    def runs(self, member: Member, chosen: Chosen) -> RemoteRuns:
        return RemoteRuns(self, member, chosen)

    def form_times(
        self, calls: Sequence[Call], lengths: tuple[int, ...], chosen: Chosen
    ) -> tuple[float, ...]:
        chosen = chosen.only(calls)
        arguments = calls, lengths, chosen, self._code(chosen)
        self._open = None
        for _ in range(ATTEMPTS):
            try:
                times: tuple[float, ...] = self._call(station_host.form_times, *arguments)
                return times
            except WorkerGone as gone:
                reason = str(gone)
                self.restart()
        raise HostError(
            "the forms of the scan cannot be timed",
            where=f"{self.name}: {lengths} tokens of {calls[0].signature.id}",
            found=reason,
            mend="run again: what was measured is kept",
        )

    def ask(self, runs: RemoteRuns, function: Callable[..., Any], *arguments: object) -> Any:
        """A call about the launch of `runs`. Raises `WorkerGone` when the process ends."""
        if self._open is not runs:
            self._open = None
            self._call(station_host.open_member, runs.member, runs.chosen, runs.code)
            self._open = runs
        return self._call(function, *arguments)

    def restart(self) -> None:
        """Another process in place of the one there is. Raises `StationLost` where that fails."""
        if self._closed:
            raise StationLost("the station was closed", where=self.name)
        if self._worker is not None:
            self._worker.close()
        self._open = None
        device = self.session.device
        self.start()
        if self.session.device != device:
            found = self.session.device
            self.close()
            raise StationLost(
                "another GPU took this one's place", where=self.name, found=found, wanted=device
            )

    def close(self) -> None:
        self._closed = True
        if self._worker is not None:
            self._worker.close()

    def _call(self, function: Callable[..., Any], *arguments: object) -> Any:
        assert self._worker is not None, "start() comes first"
        try:
            return self._worker.call(function, *arguments, limit_s=TRIAL_LIMIT_S)
        except HostError as error:
            raise self._lost(error) from error

    def _code(self, chosen: Chosen) -> dict[str, bytes]:
        codes = (
            chosen.candidates[launch].code(configuration)
            for launch, configuration in chosen.configurations.items()
        )
        return {code.sha256: self._cubins[code.sha256] for code in codes}

    def code_of(self, member: Member, chosen: Chosen) -> dict[str, bytes]:
        """The cubins of a launch's candidates and of their companions."""
        own = (c.code for c in member.candidates.compiled if c.code is not None)
        return {code.sha256: self._cubins[code.sha256] for code in own} | self._code(chosen)

    def _lost(self, error: HostError) -> StationLost:
        where = f"{self.name}: {error.where}" if error.where else self.name
        return StationLost(error.what, where, error.found, error.wanted, error.mend)


class RemoteRuns:
    """The trials of one launch in a station's process, whichever process that is by now."""

    def __init__(self, station: RemoteStation, member: Member, chosen: Chosen) -> None:
        self.member = member
        self.chosen = chosen
        self._station = station

    @cached_property
    def names(self) -> tuple[str, ...]:
        made = workloads(self.member, self._station.target.multiprocessors)
        return tuple(workload.name for workload in made)

    @cached_property
    def code(self) -> dict[str, bytes]:
        return self._station.code_of(self.member, self.chosen)

    def run(self, configuration: Configuration) -> Trial:
        """The trial; one that ends its process each time is rejected for that."""
        try:
            (trial,) = self._answer(station_host.run, configuration)
        except WorkerGone as gone:
            code = self.member.candidates.code(configuration)
            return Trial(
                configuration, rejected=str(gone), registers=code.registers,
                spill_bytes=code.spill_bytes,
            )  # fmt: skip
        assert isinstance(trial, Trial)
        return trial

    def time(self, configuration: Configuration) -> tuple[float, ...]:
        try:
            times, failed = self._answer(station_host.time, configuration)
        except WorkerGone as gone:
            raise TrialFailed(str(gone)) from gone
        if failed:
            raise TrialFailed(failed)
        return tuple(times)

    def _answer(self, function: Callable[..., Any], configuration: Configuration) -> list[Any]:
        """What the station says, without its last word: whether its process can go on. One that
        cannot is replaced. Raises `WorkerGone` for a question that ends it each time."""
        for _ in range(ATTEMPTS):
            try:
                answer: list[Any] = [*self._station.ask(self, function, configuration)]
            except WorkerGone as gone:
                reason = str(gone)
                self._station.restart()
                continue
            usable = answer.pop()
            if not usable:
                self._station.restart()
            return answer
        raise WorkerGone(f"did not run: its process ended {ATTEMPTS} times: {reason}")

    def usable(self) -> bool:
        """Always: a process whose device was lost has been replaced."""
        return True
