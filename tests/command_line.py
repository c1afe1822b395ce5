"""Running `ssd-aot` in tests: in this process, or in one of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner, Result

from ssd_aot.cli import main

ROOT = Path(__file__).parent.parent

TINY = """\
version: 1
models:
  tiny: {nheads: 4, headdim: 16, dstate: 16, ngroups: 1}
matrix: {HAS_INITSTATES: [true], num_seqs: [many]}
"""
"""One signature of all four kernels, in eight launches."""

SHORT = TINY.replace("[many]", "[100..200]")
"""One signature with too many sequences for segments: two launches."""


def ssd_aot(*arguments: str | Path) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(main, _spelled(arguments))


def command(*arguments: str | Path) -> list[str]:
    """The command line of a process that runs a command."""
    return [sys.executable, "-m", "ssd_aot.cli", *_spelled(arguments)]


def heed_interrupts() -> None:
    """For a process about to start: a shell lets those that it starts behind ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _spelled(arguments: tuple[str | Path, ...]) -> list[str]:
    # Tests that build are the same on a host with the target GPU, where a build would measure.
    unmeasured = ["--no-tune"] if arguments[0] == "build" else []
    return [*map(str, arguments), *unmeasured]


def elsewhere(
    *arguments: str | Path, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own."""
    return python(*command(*arguments)[1:], cwd=cwd, **environment)


def python(
    *arguments: str, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run this Python, with this checkout in its path."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
