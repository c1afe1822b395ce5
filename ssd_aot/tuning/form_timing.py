"""The pairs of forms of a run, timed by any number of stations at once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from ssd_aot.tuning.attempts import BudgetSpent, Clock
from ssd_aot.tuning.forms import FormPair
from ssd_aot.tuning.measuring import Chosen
from ssd_aot.tuning.records import FormPoint
from ssd_aot.tuning.stations import Station


class FormTiming:
    """Both times of a pair are one station's: a GPU is compared with itself."""

    def __init__(self, pairs: Sequence[FormPair], chosen: Chosen, clock: Clock, date: str) -> None:
        self._left = deque(pairs)
        self._chosen = chosen
        self._clock = clock
        self._date = date
        self._points: list[FormPoint] = []
        self._lock = threading.Lock()

    @property
    def finished(self) -> bool:
        return not self._left

    @property
    def points(self) -> tuple[FormPoint, ...]:
        return tuple(sorted(self._points, key=lambda point: point.place))

    def work(self, station: Station) -> None:
        while (pair := self._take()) is not None:
            try:
                times = station.form_times(pair.calls, pair.lengths, self._chosen)
            except BaseException:
                with self._lock:
                    self._left.appendleft(pair)
                raise
            with self._lock:
                self._points.append(pair.point(times, self._date))

    def _take(self) -> FormPair | None:
        with self._lock:
            try:
                self._clock.check()
            except BudgetSpent:
                return None
            return self._left.popleft() if self._left else None
