"""A bundle's files in the service of Triton's cache: found by Triton's keys, counted, checked."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ssd_aot.bundle.store import Bundle
from ssd_aot.runtime.guard import TUNING, Guard

BUNDLE = "SSD_AOT_BUNDLE"
KERNELS = "SSD_AOT_KERNELS"
CACHE_FOLDER = "TRITON_CACHE_DIR"
MANAGER = "ssd_aot.runtime.triton_cache:BundleCacheManager"
"""As `TRITON_CACHE_MANAGER` names it."""


@dataclass(frozen=True)
class Served:
    """Where a loaded bundle keeps what Triton may ask for."""

    bundle: Bundle
    groups: dict[tuple[str, str], dict[str, str]]
    """(key, name of the metadata file) → file name → absolute path."""
    tunings: dict[tuple[str, str], str]
    """(key, file name) → absolute path."""
    keyed_modules: dict[tuple[str, str], str]
    named_modules: dict[str, str]

    @classmethod
    def of(cls, bundle: Bundle, extension_suffix: str, sources: dict[str, str]) -> Served:
        """`sources` are the sha256 of the sources that this Triton would build, by module name:
        a module of another source is not served."""
        files = bundle.manifest.triton
        assert files is not None
        root = bundle.path

        def place(path: str) -> str:
            return str(root / path)

        groups = {
            (kernel.key, f"{kernel.name}.json"): {
                name: place(path) for name, path in kernel.files().items()
            }
            for kernel in files.kernels
        }
        tunings = {(tuning.key, tuning.name): place(tuning.path) for tuning in files.tunings}
        keyed, named = {}, {}
        for module in files.host_modules:
            name = f"{module.name}{extension_suffix}"
            for key in module.keys:
                keyed[key, name] = place(module.path)
            if sources.get(module.name) == module.source_sha256:
                named[name] = place(module.path)
        return cls(bundle, groups, tunings, keyed, named)

    def group(self, key: str, filename: str) -> dict[str, str] | None:
        return self.groups.get((key, filename))

    def file(self, key: str, filename: str) -> str | None:
        wanted = (key, filename)
        return (
            self.tunings.get(wanted)
            or self.keyed_modules.get(wanted)
            or self.named_modules.get(filename)
        )


@dataclass
class TritonService:
    """What this process serves and has served; one a process."""

    served: list[Served] = field(default_factory=list)
    strict: bool = False
    hits: Counter[str] = field(default_factory=Counter)
    misses: Counter[str] = field(default_factory=Counter)
    cache_folder: str | None = None
    when_first_used: Callable[[Served, str, str], None] | None = None
    """Told of the first kernel that is found, by bundle, key and file name; then forgotten."""
    by_environment: bool = False
    """Whether the environment named the bundle, and not the program."""
    asked: bool = False
    """Whether the environment was asked for a bundle already."""
    guard: Guard = field(default_factory=Guard)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, served: Served, *, strict: bool) -> None:
        with self.lock:
            if all(one.bundle.digest != served.bundle.digest for one in self.served):
                self.served.append(served)
            self.strict = self.strict or strict
            self.cache_folder = os.environ.get(CACHE_FOLDER)

    def group(self, key: str, filename: str) -> dict[str, str] | None:
        kernel = filename.removesuffix(".json")
        for served in self.served:
            found = served.group(key, filename)
            if found is not None:
                self.hits[kernel] += 1
                told, self.when_first_used = self.when_first_used, None
                if told is not None:
                    told(served, key, filename)
                return found
        return None

    def file(self, key: str, filename: str) -> str | None:
        for served in self.served:
            found = served.file(key, filename)
            if found is not None:
                self.hits[filename] += 1
                return found
        return None

    def missed(self, key: str, filename: str) -> None:
        """Nobody has it: Triton will compile, or tune, or build. Raises MissingLaunchError in
        strict mode."""
        self.misses[filename] += 1
        if self.served:
            self.guard.missed([one.bundle for one in self.served], key, filename, self.strict)

    def measured(self) -> None:
        """An autotuner measures a candidate. Raises MissingLaunchError in strict mode."""
        tuning = self.guard.unseen_tuning()
        if tuning is not None:
            self.misses[f"{tuning.kernel}{TUNING}"] += 1
            self.guard.measured([one.bundle for one in self.served], tuning, self.strict)

    def status(self) -> dict[str, Any]:
        """Bundles, digests, hits and misses by file since load, and what changed under them."""
        now = os.environ.get(CACHE_FOLDER)
        changed = []
        if self.served and now != self.cache_folder:
            changed.append(f"{CACHE_FOLDER} was {self.cache_folder}, is {now}; served all the same")
        changed += [
            f"{one.bundle.path} is gone" for one in self.served if not _is_there(one.bundle.path)
        ]
        return {
            "bundles": [
                {"path": str(one.bundle.path), "digest": one.bundle.digest,
                 "source": one.bundle.manifest.source.name}
                for one in self.served
            ],
            "strict": self.strict,
            "hits": dict(sorted(self.hits.items())),
            "misses": dict(sorted(self.misses.items())),
            "changed": changed,
        }  # fmt: skip

    def say_if_unused(self) -> None:
        """At exit: a bundle of which no kernel was asked does not fit or is not wired up. Host
        modules say nothing: Triton asks for those of any program."""
        if self.served and all(name.endswith(".so") for name in self.hits):
            paths = ", ".join(str(one.bundle.path) for one in self.served)
            print(
                f"ssd-aot: {paths} was loaded and never used by process {os.getpid()}",
                file=sys.stderr,
            )


def _is_there(path: Path) -> bool:
    try:
        return (path / "manifest.json").is_file()
    except OSError:
        return False


SERVICE = TritonService()
