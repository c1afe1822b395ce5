"""Asking what may be broken, each in a process of its own: it may crash, hang or print anything."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ssd_aot

ALLOWED_S = 120.0
"""How long a probe may take. Importing torch from a slow disk for the first time takes longest."""

_PROGRAM = "from ssd_aot.doctor.probes import main; main()"


@dataclass(frozen=True)
class Probed:
    """What a probe found; `trouble` says why there is nothing, `wanted` and `mend` what should be
    there and what may be done."""

    facts: Mapping[str, Any]
    trouble: str = ""
    wanted: str = ""
    mend: str = ""

    @classmethod
    def of(cls, facts: Any) -> Probed:
        """From a probe's answer, or a part of it."""
        if not isinstance(facts, dict):
            return cls({}, f"an answer that is none: {facts!r}")
        return cls(facts, *(str(facts.get(name, "")) for name in ("trouble", "wanted", "mend")))

    def part(self, name: str) -> Probed:
        """What was asked apart from the rest."""
        return replace(self, facts={}) if self.trouble else self.of(self.facts.get(name))


def probe(
    questions: Mapping[str, Sequence[str]], allowed_s: float = ALLOWED_S
) -> dict[str, Probed]:
    """The answers to questions, each a name with the arguments of its process, asked at the same
    time. Raises nothing for whatever a probe does."""
    until = time.monotonic() + allowed_s
    started = {name: _start(arguments) for name, arguments in questions.items()}
    return {name: _answer(process, until) for name, process in started.items()}


def _start(arguments: Sequence[str]) -> subprocess.Popen[bytes] | str:
    package = str(Path(ssd_aot.__file__).parent.parent)
    # Last, so that what the environment puts in front of it stays in front.
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH", ""), package)))
    try:
        # Not from the current folder (-P): a file there may have the name of a module.
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _PROGRAM, *arguments],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        return f"Python cannot be run: {error}"


def _answer(process: subprocess.Popen[bytes] | str, until: float) -> Probed:
    if isinstance(process, str):
        return Probed({}, process)
    with process:
        try:
            output, messages = process.communicate(timeout=max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return Probed({}, "no answer in time, so it was stopped")
    if process.returncode < 0:
        return Probed({}, f"it ends the process: {_signal(-process.returncode)}")
    lines = output.decode(errors="replace").split("\n")
    try:
        return Probed.of(json.loads(lines[-2]))
    except (IndexError, ValueError):
        last = messages.decode(errors="replace").strip().split("\n")[-1] or "it said nothing"
        return Probed({}, f"it ends the process with code {process.returncode}: {last}")


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
