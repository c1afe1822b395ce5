"""What a recorded process writes: one line of JSON an event, to a file of its own.

A recorder must never end the program that it watches: what cannot be written down is left out, with
the reason, and nothing is raised.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from ssd_aot.errors import SsdAotError
from ssd_aot.launches import Configuration, Launch
from ssd_aot.triton_compat.in_progress import (
    CompilationInProgress,
    TuningInProgress,
    compilation_in_progress,
    config_fields,
    tuning_in_progress,
)
from ssd_aot.triton_compat.kernel import kernel_text, reference_of, refuse_unreachable
from ssd_aot.triton_compat.values import spelled

HOOKED = "a candidate has a pre_hook, which Triton does not store"


class EventWriter:
    """Appends to the file of the process that calls, also where that was forked from another."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._seen: set[str] = set()

    def compilation(self, key: str) -> None:
        """Triton looks a kernel up, to load or to compile it."""
        found = compilation_in_progress()
        if found is None:
            return
        try:
            refuse_unreachable(found.function)
            launch, configuration = found.described()
            _refuse_paths(launch)
            given = [(name, spelled(value, name)) for name, value in found.options]
        except SsdAotError as error:
            self.left_out(found.kernel, error)
            return
        if found.tuning is not None and found.tuning.key is not None:
            self._write(_tuning(found.tuning, None))
        self._write(
            {
                "event": "launch",
                "kernel": found.kernel,
                "key": key,
                "source": str(found.function.cache_key),
                "text": vars(kernel_text(found.function)),
                "launch": launch.to_json(),
                "configuration": configuration.to_json(),
                "given": [list(pair) for pair in given],
                "gpu": _gpu(),
                **_choice(found, configuration),
            }
        )

    def tuning(self, path: str | None) -> None:
        """Triton looks a tuning result up, and has it at `path` or nowhere."""
        found = tuning_in_progress()
        if found is not None:
            self._write(_tuning(found, _winner(_text(path)) if path else None))

    def tuned(self, data: Any) -> None:
        """Triton stores a tuning result."""
        found = tuning_in_progress()
        if found is not None:
            self._write(_tuning(found, _winner(data)))

    def left_out(self, kernel: str, error: SsdAotError) -> None:
        found = f": {error.found}" if error.found else ""
        self._write({"event": "left out", "kernel": kernel, "reason": f"{error.what}{found}"})

    def _write(self, event: dict[str, Any]) -> None:
        if not self._folder:
            return
        try:
            line = json.dumps(event)
        except (TypeError, ValueError) as error:
            line = json.dumps({"event": "left out", "kernel": event["kernel"],
                               "reason": f"it cannot be written down: {error}"})  # fmt: skip
        with self._lock:
            if line in self._seen:
                return
            self._seen.add(line)
            try:
                path = Path(self._folder, f"{os.getpid()}.jsonl")
                with path.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
            except OSError as error:
                print(f"ssd-aot record: {error}", file=sys.stderr)


def _choice(found: CompilationInProgress, configuration: Configuration) -> dict[str, Any]:
    """What of the launch a candidate of an autotuner chose."""
    tuning = found.tuning
    config = (tuning.trial or tuning.chosen) if tuning else None
    if tuning is None or tuning.key is None or config is None:
        return {}
    return {
        "tuning": str(tuning.key),
        "config": config_fields(config),
        "trial": tuning.trial is not None,
        "derives": list(tuning.derives),
    }


def _tuning(found: TuningInProgress, winner: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "event": "tuning",
        "kernel": reference_of(found.function),
        "tuning": str(found.key),
        "offered": [config_fields(config) for config in found.configs],
        "winner": winner,
        "reason": HOOKED if any(config.pre_hook for config in found.configs) else "",
    }


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def _winner(data: Any) -> dict[str, Any] | None:
    """The best candidate of a stored result, None where all of them failed."""
    try:
        timings = json.loads(data)["configs_timings"]
        config, timing = min(timings, key=lambda pair: pair[1] or [0.0])
    except (ValueError, KeyError, TypeError):
        return None
    if timing and timing[0] == float("inf"):
        return None
    return {name: value for name, value in config.items() if name != "pre_hook"}


def _refuse_paths(launch: Launch) -> None:
    """Raises an error for a constant that is a path: a recording can be moved."""
    for name, value in (*launch.constexprs, *launch.options):
        if isinstance(value, str) and value.startswith("/"):
            raise SsdAotError("a constant of it is a path of this host", found=name)


def _gpu() -> list[Any]:
    """The GPU's name and compute capability as torch tells them, where the program uses torch."""
    torch = sys.modules.get("torch")
    try:
        assert torch is not None
        return [torch.cuda.get_device_name(), *torch.cuda.get_device_capability()]
    except Exception:
        return []
