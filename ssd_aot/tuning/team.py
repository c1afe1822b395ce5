"""Stations that work at the same time, each taking what is next; one that is lost leaves the rest
to the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress

from ssd_aot.tuning.stations import Station, StationLost


class Team:
    """At least one station; they start with the first work. `on_notice` is told of lost ones."""

    def __init__(
        self, stations: Sequence[Station], on_notice: Callable[[str], None] | None = None
    ) -> None:
        self._stations = list(stations)
        self._on_notice = on_notice
        self._threads = ThreadPoolExecutor(len(stations)) if len(stations) > 1 else None
        self._lock = threading.Lock()
        self._ready: list[Station] = []

    def run(self, work: Callable[[Station], None]) -> None:
        """`work` on every station, which returns when it finds nothing left to take.

        Raises `StationLost` when the last station is lost, and whatever else `work` raises.
        """
        if self._threads is None:
            # In the caller's thread, to which the GPU of an `OwnStation` may be bound.
            self._take_part(self._stations[0], work)
            return
        parts = {self._threads.submit(self._take_part, s, work): s for s in self._stations}
        lost: StationLost | None = None
        finished = False
        while parts:
            for future in wait(parts, return_when=FIRST_COMPLETED).done:
                station = parts.pop(future)
                try:
                    future.result()
                    finished = True
                except StationLost as error:
                    lost = error
                    self._drop(station, str(error))
            if finished and not any(station in self._ready for station in parts.values()):
                self._leave_out(parts)
                return
        if not finished:
            assert lost is not None
            raise lost

    def close(self) -> None:
        """End all stations, and what they are doing."""
        for station in self._stations:
            station.close()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def _take_part(self, station: Station, work: Callable[[Station], None]) -> None:
        if station not in self._ready:
            station.start()
            self._admit(station)
        work(station)

    def _admit(self, station: Station) -> None:
        """Times of a GPU of another name would be another record's."""
        with self._lock:
            first = self._ready[0] if self._ready else station
            if station.session.device != first.session.device:
                raise StationLost(
                    "another GPU than the one measured on first",
                    where=station.name,
                    found=station.session.device,
                    wanted=first.session.device,
                    mend="measure on it in a run of its own",
                )
            self._ready.append(station)

    def _leave_out(self, parts: dict[Future[None], Station]) -> None:
        """Those that were still waiting for their GPU when all was done."""
        for future, station in parts.items():
            self._drop(station, f"{station.name}: was not ready before the others had finished")
            with suppress(StationLost):
                future.result()

    def _drop(self, station: Station, reason: str) -> None:
        self._stations.remove(station)
        station.close()
        if self._on_notice is not None:
            self._on_notice(f"left out: {reason}")
