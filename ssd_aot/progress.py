"""How far a long piece of work is, as lines on stderr."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TextIO


@dataclass(frozen=True)
class Progress:
    """`done` of `total` pieces are finished, `failed` of them without success; times in seconds.

    `remaining_s` is None until there is something to estimate it from.
    """

    done: int
    total: int
    failed: int
    elapsed_s: float
    remaining_s: float | None
    verb: str = "compiled"

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
    """Prints progress: one line rewritten in place on a terminal, elsewhere a plain line at most
    every `every_s` seconds and a last one at the end."""

    def __init__(self, stream: TextIO | None = None, every_s: float = 5.0) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._on_terminal = self._stream.isatty()
        self._every_s = every_s
        self._printed_at = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        finished = progress.done == progress.total
        if self._on_terminal:
            self._stream.write(f"\r\x1b[K{progress}" + ("\n" if finished else ""))
        elif finished or time.monotonic() - self._printed_at >= self._every_s:
            self._stream.write(f"{progress}\n")
            self._printed_at = time.monotonic()
        self._stream.flush()
