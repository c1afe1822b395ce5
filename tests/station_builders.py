"""Stations for tests: tables of times in threads, and processes whose GPU is the reference."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor
from tuning_builders import SESSION, FakeMeasure, Fault

import ssd_aot.sources.batches
import ssd_aot.tuning.workloads
from ssd_aot.compilation.calling import WorkerGone, pack, perform, result_of
from ssd_aot.compilation.spawning import SpawnedWorker
from ssd_aot.errors import HostError
from ssd_aot.launches import Configuration
from ssd_aot.targets import Target
from ssd_aot.tuning import station_host
from ssd_aot.tuning.compiled_candidates import CompiledCandidates
from ssd_aot.tuning.groups import Call, Member
from ssd_aot.tuning.measuring import Chosen
from ssd_aot.tuning.records import Session, Trial
from ssd_aot.tuning.remote_station import Opening, RemoteStation
from ssd_aot.tuning.station_host import OpenDevice, OpenedDevice
from ssd_aot.tuning.stations import StationLost
from ssd_aot.tuning.workloads import workloads

Table = Mapping[tuple[str, Configuration], float]
"""Microseconds by kernel and configuration, 10 unless given."""


@dataclass(eq=False)
class TableStation:
    """Answers from a table at once; what it was asked stays in `tried`. `before` is called ahead of
    each trial, with how many came before."""

    name: str = "GPU 0"
    times: Table = field(default_factory=dict)
    session: Session = SESSION
    before: Callable[[int], None] | None = None
    tried: list[tuple[str, Configuration]] = field(default_factory=list)
    closed: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None: ...

    def runs(self, member: Member, chosen: Chosen) -> TableRuns:
        return TableRuns(self, member, chosen)

    def form_times(
        self, calls: Sequence[Call], lengths: tuple[int, ...], chosen: Chosen
    ) -> tuple[float, ...]:
        return tuple(self.time_of(call, chosen) for call in calls)

    def time_of(self, call: Call, chosen: Chosen) -> float:
        return sum(
            self.times.get((launch.kernel, chosen.configurations[launch]), 10.0)
            for launch in call.launches
        )

    def close(self) -> None:
        self.closed.set()


@dataclass
class TableRuns:
    station: TableStation
    member: Member
    chosen: Chosen

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(workload.name for workload in workloads(self.member, 132))

    def run(self, configuration: Configuration) -> Trial:
        if self.station.before is not None:
            self.station.before(len(self.station.tried))
        self.station.tried.append((self.member.launch.kernel, configuration))
        return Trial(configuration, times_us=self.time(configuration), error=0.0)

    def time(self, configuration: Configuration) -> tuple[float, ...]:
        chosen = self.chosen.with_choice(self.member.launch, configuration)
        return tuple(
            self.station.time_of(workload.call, chosen) for workload in workloads(self.member, 132)
        )

    def usable(self) -> bool:
        return True


class BusyStation(TableStation):
    """Waits for a GPU that nobody gives up, until it is closed."""

    def start(self) -> None:
        self.closed.wait()
        raise StationLost("closed while it waited", where=self.name)


def slowly(before: int) -> None:
    """Leaves the others time to take their part."""
    time.sleep(0.01)


def lost_after(trials: int) -> Callable[[int], None]:
    """The GPU of a station that goes after so many trials."""

    def check(before: int) -> None:
        slowly(before)
        if before >= trials:
            raise StationLost("the GPU fell off the bus", where="GPU 1", found="error 79")

    return check


def open_reference(
    target: Target,
    cubins: Mapping[str, bytes],
    index: int,
    *,
    times: Table | None = None,
    faults: Mapping[tuple[str, Configuration], Fault] | None = None,
) -> OpenedDevice:
    """The reference in the GPU's place, its problems short: as `OpenDevice`, in any process. Each
    rejected candidate takes the device with it."""
    ssd_aot.sources.batches.LONGEST_TOKENS = 90
    ssd_aot.tuning.workloads.MOST_SETS = 1
    measure = FakeMeasure(times=times or {}, faults=faults or {}, lost=True)
    return OpenedDevice(measure, SESSION.device, SESSION.driver)


def process_station(
    candidates: CompiledCandidates, name: str, open_device: OpenDevice = open_reference
) -> RemoteStation:
    """A station with a process of its own on this host."""
    return RemoteStation(
        name, partial(SpawnedWorker, name), Opening(candidates.target, 0, open_device),
        candidates.cubins, candidates.toolchain, SESSION.date,
    )  # fmt: skip


def killed(out: Tensor, calls: int) -> None:
    """A fault that takes the process with it."""
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class InlineWorker:
    """Makes calls in this process, and is gone when a fault says so."""

    name: str
    fault: Callable[[Callable[..., Any], tuple[object, ...]], None]
    closed: bool = False

    def call(
        self, function: Callable[..., Any], *arguments: object, limit_s: float | None = None
    ) -> Any:
        self.fault(function, arguments)
        return result_of(perform(pack(function, arguments)))

    def close(self) -> None:
        self.closed = True


def inline_station(
    candidates: CompiledCandidates, *, dying_with: Configuration, deaths: int, opened: int = 9
) -> tuple[RemoteStation, list[InlineWorker]]:
    """A station and the workers it will have had: they die with one candidate so many times, and
    its GPU can be `opened` no more often than that."""
    workers: list[InlineWorker] = []
    begun: list[None] = []
    died: list[None] = []

    def fault(function: Callable[..., Any], arguments: tuple[object, ...]) -> None:
        if function is station_host.begin:
            if len(begun) == opened:
                raise HostError("no such GPU")
            begun.append(None)
        if function is station_host.run and arguments == (dying_with,) and len(died) < deaths:
            died.append(None)
            raise WorkerGone("process 1 was ended by SIGSEGV")

    def hire() -> InlineWorker:
        workers.append(InlineWorker("GPU 0", fault))
        return workers[-1]

    station = RemoteStation(
        "GPU 0", hire, Opening(candidates.target, 0, open_reference), candidates.cubins,
        candidates.toolchain, SESSION.date,
    )  # fmt: skip
    return station, workers


def at(session: Session, device: str) -> Session:
    return replace(session, device=device)
