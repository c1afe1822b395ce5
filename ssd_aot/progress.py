"""How far a long piece of work is, as lines on stderr."""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import dataclass
from typing import TextIO

from ssd_aot.terminal import Level, level


@dataclass(frozen=True)
class Progress:
    """`done` of `total` pieces are finished, `failed` of them without success; times in seconds.

    `remaining_s` is None until there is something to estimate it from; `piece` names the last one
    that was finished, for those who want each.
    """

    done: int
    total: int
    failed: int
    elapsed_s: float
    remaining_s: float | None
    verb: str = "compiled"
    piece: str = ""

    def __str__(self) -> str:
        parts = [f"{self.verb} {self.done}/{self.total}"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        parts.append(f"elapsed {_clock(self.elapsed_s)}")
        if self.remaining_s is not None and self.done < self.total:
            parts.append(f"remaining ~{_clock(self.remaining_s)}")
        return " · ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


class ProgressPrinter:
    """Prints progress: one line rewritten in place on a terminal, at most ten times a second;
    elsewhere a plain line at most every `every_s` seconds; the last state always.

    Says nothing where a command is quiet, and each piece as it is finished where it is verbose.
    """

    def __init__(self, stream: TextIO | None = None, every_s: float = 5.0) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._on_terminal = self._stream.isatty()
        self._every_s = 0.1 if self._on_terminal else every_s
        self._printed_at = -1e9 if self._on_terminal else time.monotonic()
        self._level = level()

    def __call__(self, progress: Progress) -> None:
        if self._level is Level.QUIET:
            return
        if self._level is Level.VERBOSE and progress.piece:
            self._write(f"{progress.verb} {progress.piece}", lasting=True)
        finished = progress.done == progress.total
        if not finished and time.monotonic() - self._printed_at < self._every_s:
            return
        self._printed_at = time.monotonic()
        line = str(progress)
        if self._on_terminal:
            # A line that wraps could not be rewritten.
            line = line[: shutil.get_terminal_size().columns - 1]
        self._write(line, lasting=finished or not self._on_terminal)

    def _write(self, line: str, *, lasting: bool) -> None:
        start = "\r\x1b[K" if self._on_terminal else ""
        self._stream.write(f"{start}{self._spelled(line)}" + ("\n" if lasting else ""))
        self._stream.flush()

    def _spelled(self, line: str) -> str:
        """The line in characters that the stream has."""
        try:
            line.encode(getattr(self._stream, "encoding", None) or "utf-8")
        except UnicodeEncodeError:
            return line.replace("·", "-")
        return line
