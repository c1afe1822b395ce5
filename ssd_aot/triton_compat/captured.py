"""What a capture tells of a launch: its candidates, and the keys under which Triton asks for it."""

from __future__ import annotations

from dataclasses import dataclass

from ssd_aot.bundle.manifest import KernelText
from ssd_aot.launches import Configuration, Launch


@dataclass(frozen=True)
class CapturedCandidate:
    """A configuration, Triton's key for it (sha256), how Triton's tuning results spell it, and the
    key under which a process keeps the kernel once it has it."""

    configuration: Configuration
    key: str
    spelled: str = ""
    launch_key: str = ""


@dataclass(frozen=True)
class TuningResult:
    """Where Triton looks for a stored tuning: its key (sha256), the file's name, and the tuning
    key as JSON. `reason` says why Triton can store none."""

    key: str = ""
    file: str = ""
    tuning_key: str = ""
    reason: str = ""


@dataclass(frozen=True)
class CapturedLaunch:
    """A launch with all its candidates, the tuner's own order kept; `launch.kernel` is
    "module:function" and `source_sha256` Triton's hash over its source."""

    launch: Launch
    source_sha256: str
    candidates: tuple[CapturedCandidate, ...]
    tuning: TuningResult | None = None
    text: KernelText | None = None
