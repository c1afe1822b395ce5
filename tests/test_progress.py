"""Progress as lines."""

from __future__ import annotations

import io

import pytest

from ssd_aot.progress import Progress, ProgressPrinter
from ssd_aot.terminal import Level, speaking


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


def test_on_a_terminal_states_that_follow_one_another_at_once_are_passed_over() -> None:
    stream = Terminal()
    printer = ProgressPrinter(stream)
    for done in range(1, 1001):
        printer(Progress(done, 1000, 0, 1.0, 1.0, "drew"))

    shown = stream.getvalue()
    assert shown.count("\r") < 20
    assert shown.startswith("\r\x1b[Kdrew 1/1000")
    assert shown.endswith("drew 1000/1000 · elapsed 0:01\n")


def test_a_line_on_a_terminal_never_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    stream = Terminal()

    ProgressPrinter(stream)(Progress(1, 2, 1, 1.0, 1.0))

    assert stream.getvalue() == "\r\x1b[Kcompiled 1/2 · 1 fa"


@pytest.mark.parametrize("stream_kind", [Terminal, io.StringIO])
def test_a_quiet_command_has_no_progress(stream_kind: type[io.StringIO]) -> None:
    stream = stream_kind()
    with speaking(Level.QUIET):
        printer = ProgressPrinter(stream)
    printer(Progress(2, 2, 0, 1.0, 0.0))

    assert stream.getvalue() == ""


def test_a_verbose_command_names_each_piece() -> None:
    stream = io.StringIO()
    with speaking(Level.VERBOSE):
        printer = ProgressPrinter(stream, every_s=60)
    for done, piece in enumerate(("scan", "decay"), 1):
        printer(Progress(done, 2, 0, 1.0, 0.0, piece=piece))

    assert stream.getvalue().splitlines() == [
        "compiled scan",
        "compiled decay",
        "compiled 2/2 · elapsed 0:01",
    ]


def test_a_stream_without_the_separator_gets_another() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")

    ProgressPrinter(stream)(Progress(2, 2, 0, 1.0, 0.0))

    assert stream.buffer.getvalue() == b"compiled 2/2 - elapsed 0:01\n"
