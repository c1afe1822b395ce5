"""What a station's own process does: these functions are called in it, by `RemoteStation`.

One process measures on one GPU, so what it keeps between calls is the module's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ssd_aot.launches import Configuration
from ssd_aot.targets import Target
from ssd_aot.tuning import forms
from ssd_aot.tuning.groups import Call, Member
from ssd_aot.tuning.measuring import Chosen, Measure, TrialFailed, Trials
from ssd_aot.tuning.records import Trial


@dataclass(frozen=True)
class OpenedDevice:
    """A GPU ready to measure: its name as CUDA reports it, and its driver's version."""

    measure: Measure
    device: str
    driver: str


OpenDevice = Callable[[Target, Mapping[str, bytes], int], OpenedDevice]
"""From a target, cubins by sha256 (more are added later) and a CUDA index; raises `HostError` where
that GPU is not the target."""


class _Host:
    def __init__(self, target: Target, index: int, open_device: OpenDevice) -> None:
        self.cubins: dict[str, bytes] = {}
        self.multiprocessors = target.multiprocessors
        self.opened = open_device(target, self.cubins, index)
        self.trials: Trials | None = None


_host: _Host | None = None


def begin(target: Target, index: int, open_device: OpenDevice) -> tuple[str, str]:
    """Open the GPU; its name and its driver's version."""
    global _host
    _host = _Host(target, index, open_device)
    return _host.opened.device, _host.opened.driver


def open_member(member: Member, chosen: Chosen, cubins: Mapping[str, bytes]) -> None:
    """The launch whose candidates the next calls try, and the code that takes."""
    host = _opened()
    host.cubins.update(cubins)
    # Its inputs go before the next one's come.
    host.trials = None
    host.trials = Trials(member, host.opened.measure, host.multiprocessors, chosen)


def run(configuration: Configuration) -> tuple[Trial, bool]:
    """The trial, and whether the device still works."""
    trials = _trials()
    trial = trials.run(configuration)
    return trial, not trial.rejected or trials.usable()


def time(configuration: Configuration) -> tuple[tuple[float, ...], str, bool]:
    """The times, or none and the reason, and whether the device still works."""
    trials = _trials()
    try:
        return trials.time(configuration), "", True
    except TrialFailed as failure:
        return (), str(failure), trials.usable()


def form_times(
    calls: Sequence[Call], lengths: tuple[int, ...], chosen: Chosen, cubins: Mapping[str, bytes]
) -> tuple[float, ...]:
    """As `forms.form_times`."""
    host = _opened()
    host.cubins.update(cubins)
    host.trials = None
    return forms.form_times(calls, lengths, chosen, host.opened.measure)


def _opened() -> _Host:
    assert _host is not None, "begin() comes first"
    return _host


def _trials() -> Trials:
    trials = _opened().trials
    assert trials is not None, "open_member() comes first"
    return trials
