"""The variants of a bundle on one device, by the launches that they are for."""

from __future__ import annotations

import threading

from ssd_aot.bundle.manifest import TargetEntry, VariantEntry
from ssd_aot.bundle.store import Bundle
from ssd_aot.launches import Launch
from ssd_aot.layouts import FormRule
from ssd_aot.runtime import driver
from ssd_aot.runtime.launcher import DeviceQueue, LoadedVariant
from ssd_aot.runtime.selection import Selection
from ssd_aot.runtime.workspaces import Workspaces


class DeviceModules:
    """The variants of one target on one device; modules load when first wanted."""

    def __init__(
        self,
        bundle: Bundle,
        device: driver.Device,
        target: TargetEntry,
        selection: Selection,
    ) -> None:
        self.device = device
        self.target = target
        self.rule = FormRule(target.walk_programs, target.walk_tokens)
        self.queue = DeviceQueue(device.index, threading.Lock(), Workspaces(device.index))
        self._bundle = bundle
        self._entries = {
            entry.launch: entry
            for entry in bundle.manifest.variants
            if entry.target == target.name and selection.needs(entry)
        }
        self._loaded: dict[str, int] = {}
        self._lock = threading.Lock()

    def find(self, launch: Launch) -> LoadedVariant | None:
        entry = self._entries.get(launch)
        return None if entry is None else LoadedVariant(entry, self._function(entry))

    def _function(self, entry: VariantEntry) -> int:
        code = entry.object
        with self._lock:
            if code.sha256 not in self._loaded:
                cubin = self._bundle.read_object(code)
                with driver.context_of(self.device.index):
                    self._loaded[code.sha256] = driver.load_function(
                        cubin, code.function, code.shared_bytes
                    )
            return self._loaded[code.sha256]

    def load_all(self) -> None:
        for entry in self._entries.values():
            self._function(entry)
