"""Progress as lines."""

from __future__ import annotations

import io

import pytest

from ssd_aot.progress import Progress, ProgressPrinter


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        (
            Progress(12, 80, 3, 23.4, 40.0),
            "compiled 12/80 · 3 failed · elapsed 0:23 · remaining ~0:40",
        ),
        (Progress(0, 80, 0, 0.0, None), "compiled 0/80 · elapsed 0:00"),
        (Progress(80, 80, 0, 3600.0, 0.0), "compiled 80/80 · elapsed 60:00"),
    ],
)
def test_a_progress_line(progress: Progress, line: str) -> None:
    assert str(progress) == line


def test_on_a_terminal_one_line_is_rewritten() -> None:
    stream = Terminal()
    printer = ProgressPrinter(stream)
    for done in (1, 2):
        printer(Progress(done, 2, 0, 1.0, 1.0))

    assert stream.getvalue().count("\r") == 2
    assert stream.getvalue().count("\n") == 1


def test_elsewhere_lines_are_rare_and_the_last_is_printed() -> None:
    stream = io.StringIO()
    printer = ProgressPrinter(stream, every_s=60)
    for done in range(1, 101):
        printer(Progress(done, 100, 0, 1.0, 1.0))

    assert stream.getvalue() == "compiled 100/100 · elapsed 0:01\n"
