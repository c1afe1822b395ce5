"""Candidates on a GPU: loaded through the driver, run in poisoned memory, timed by graph replay."""

from __future__ import annotations

import ctypes
import re
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ssd_aot.bundle.manifest import CodeObject, VariantEntry
from ssd_aot.errors import HostError, SsdAotError
from ssd_aot.layouts import Blocking, Counts, Form, ScanLayout
from ssd_aot.operation import launches
from ssd_aot.ops.execution import Executor
from ssd_aot.runtime import driver
from ssd_aot.runtime.launcher import DeviceQueue, LoadedVariant, PreparedScan
from ssd_aot.runtime.workspaces import Workspaces
from ssd_aot.targets import Target
from ssd_aot.tuning.measuring import Scan
from ssd_aot.tuning.replaying import replayed_us, rounds_for
from ssd_aot.tuning.station_host import OpenedDevice

_NAN_BYTE = 0xFF
"""Four of them are a float32 NaN."""


class PoisonedWorkspaces(Workspaces):
    """A piece of its own for each call, filled with NaN: no candidate finds what another left.

    While a graph is captured it is left as it is, since a fill would be timed with the kernels.
    """

    def __init__(self, device: int) -> None:
        super().__init__(device)
        self._place = torch.device("cuda", device)

    def take(self, size_bytes: int, stream: int) -> tuple[int, Tensor | None]:
        space = torch.empty(size_bytes, dtype=torch.uint8, device=self._place)
        if not torch.cuda.is_current_stream_capturing():
            space.fill_(_NAN_BYTE)
        return space.data_ptr(), space


class FormExecutor:
    """An executor that runs one form with these variants, whatever the form rule says."""

    def __init__(self, queue: DeviceQueue, form: Form, variants: Sequence[LoadedVariant]) -> None:
        self.blocking = Blocking()
        self._queue = queue
        self._form = form
        self._variants = list(variants)
        self._prepared: dict[ScanLayout, PreparedScan] = {}

    def run(self, tensors: Mapping[str, Tensor], layout: ScanLayout, counts: Counts) -> None:
        prepared = self._prepared.get(layout)
        if prepared is None:
            # A kernel with other arguments than it is passed would write anywhere.
            assert launches(layout, self._form) == tuple(v.entry.launch for v in self._variants)
            prepared = self._prepared[layout] = PreparedScan(
                self._queue, layout, self._form, self._variants, list(tensors)
            )
        addresses = [tensor.data_ptr() for tensor in tensors.values()]
        prepared(addresses, counts, torch._C._cuda_getCurrentRawStream(self._queue.device))


class DeviceMeasure:
    """The GPU of an index, which must be `target`. Raises `HostError` for another one or none."""

    def __init__(self, target: Target, cubins: Mapping[str, bytes], index: int = 0) -> None:
        self.name = check_device(target, index).name
        self.device = torch.device("cuda", index)
        torch.cuda.set_device(self.device)
        torch.zeros(1, device=self.device)
        self._cubins = cubins
        self._functions: dict[str, int] = {}
        self._queue = DeviceQueue(index, threading.Lock(), PoisonedWorkspaces(index))

    def executor(self, form: Form, variants: Sequence[VariantEntry]) -> Executor:
        loaded = [LoadedVariant(entry, self._function(entry.object)) for entry in variants]
        return FormExecutor(self._queue, form, loaded)

    def median_us(self, executor: Executor, scans: Sequence[Scan]) -> float:
        _, layout, counts = scans[0]
        calls = [partial(executor.run, *scan) for scan in scans]
        return replayed_us(calls, rounds_for(counts.tokens, layout.nheads), self.device)

    def usable(self) -> bool:
        return is_usable(self.device)

    def _function(self, code: CodeObject) -> int:
        if code.sha256 not in self._functions:
            with driver.context_of(self._queue.device):
                self._functions[code.sha256] = driver.load_function(
                    self._cubins[code.sha256], code.function, code.shared_bytes
                )
        return self._functions[code.sha256]


def is_usable(device: torch.device) -> bool:
    """Whether the device still carries out work, which a candidate can have ended."""
    try:
        torch.cuda.synchronize(device)
        torch.zeros(1, device=device).item()
    except RuntimeError:
        return False
    return True


def open_device(target: Target, cubins: Mapping[str, bytes], index: int) -> OpenedDevice:
    """As `OpenDevice`, for a GPU of this machine."""
    measure = DeviceMeasure(target, cubins, index)
    return OpenedDevice(measure, measure.name, driver_version())


def check_device(target: Target, index: int = 0) -> driver.Device:
    """The device of an index if it is that model. Raises `HostError` for another one or none."""
    try:
        found = driver.device(index)
    except SsdAotError as error:
        raise _no_device(target, error.found or error.what) from error
    if not target.is_device(found.name, found.capability):
        raise _no_device(target, found.name)
    if not torch.cuda.is_available():
        raise _no_device(target, "a torch without CUDA")
    return found


def driver_version() -> str:
    """The kernel driver's version where the system tells it, else the CUDA version it offers."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        text = ""
    found = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", text)
    if found:
        return found.group(1)
    version = ctypes.c_int()
    driver.call("cuDriverGetVersion", ctypes.byref(version))
    return f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"


def _no_device(target: Target, found: str) -> HostError:
    return HostError(
        f"tuning for {target.name} needs that GPU",
        where="tune",
        found=found,
        wanted=f"{target.name}, its driver, and a torch with CUDA",
        mend="run this on such a GPU, or compile here with --compile-only and measure there "
        "with --compiled",
    )
