"""Running a program so that it and all its children record, and writing what they saw."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ssd_aot.errors import UsageError
from ssd_aot.recording.environment import INNER, JOURNAL, MANAGER
from ssd_aot.recording.gathering import gather
from ssd_aot.recording.recorded import Recording


@dataclass(frozen=True)
class Run:
    """The program's exit code, as a shell tells it, and what was recorded."""

    code: int
    recording: Recording


def record_program(command: Sequence[str]) -> Run:
    """Run a command until it ends, with signals passed on, and gather what Triton did in it.

    Raises UsageError for a command that cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="ssd-aot-record-") as folder:
        environment = dict(os.environ)
        given = environment.get("TRITON_CACHE_MANAGER", "")
        if given and given != MANAGER:
            environment[INNER] = given
        environment["TRITON_CACHE_MANAGER"] = MANAGER
        # Without stored results a choice leaves no trace that a recorder could see.
        environment["TRITON_CACHE_AUTOTUNING"] = "1"
        environment[JOURNAL] = folder
        try:
            process = subprocess.Popen(list(command), env=environment)
        except OSError as error:
            raise UsageError(
                "the program cannot be started",
                where=command[0],
                found=error.strerror or str(error),
                wanted="a program on PATH",
                mend="write it as you would start it, after --",
            ) from error
        code = _wait(process)
        return Run(code, gather(Path(folder)))


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait, handing on what ends a server; Ctrl-C reaches it without our help."""

    def hand_on(number: int, _: object) -> None:
        process.send_signal(number)

    before = signal.signal(signal.SIGTERM, hand_on)
    try:
        while True:
            try:
                code = process.wait()
                break
            except KeyboardInterrupt:
                continue
    finally:
        signal.signal(signal.SIGTERM, before)
    return 128 - code if code < 0 else code


def spec_text(recording: Recording) -> str:
    """The recording as a spec file."""
    form = recording.to_json()
    form["kernels"] = {name: _Line(kernel) for name, kernel in form["kernels"].items()}
    for tuning in form["tunings"]:
        tuning["offered"] = [_Line(config) for config in tuning["offered"]]
    for launch in form["launches"]:
        for name in ("constexprs", "arguments", "options", "given"):
            launch[name] = _Line(launch[name])
        launch["candidates"] = [[at, _Line(fields)] for at, fields in launch["candidates"]]
    document: dict[str, Any] = {"version": 1, "source": "recording"}
    if recording.recorded_on:
        document["targets"] = list(recording.recorded_on)
    document["recording"] = form
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=2**31)
    return text


class _Line(dict[str, Any]):
    """A mapping that is written on one line."""


class _Dumper(yaml.SafeDumper):
    """Writes nothing by reference."""

    def ignore_aliases(self, data: object) -> bool:
        return True


_Dumper.add_representer(
    _Line,
    lambda dumper, data: dumper.represent_mapping(
        "tag:yaml.org,2002:map", data.items(), flow_style=True
    ),
)
