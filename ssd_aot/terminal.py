"""How much a command says and in which colours: one setting, whichever part of it speaks.

Results and what went wrong are always said. `-q` leaves out progress and notes, `-v` adds details.
Colours are for terminals alone: click takes them out of what goes to a file or a pipe.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import IntEnum

import click


class Level(IntEnum):
    """How much is said."""

    QUIET = 0
    NORMAL = 1
    VERBOSE = 2


_level: ContextVar[Level] = ContextVar("level", default=Level.NORMAL)

_COLOURS = {
    "ok": "green", "ready": "green", "note": "cyan", "not checked": "yellow", "dropped": "yellow",
    "failed": "red", "lacking": "red", "lacks": "red", "error": "red", "NOT verified": "red",
    "INCOMPLETE": "red",
}  # fmt: skip
_FIRST = r"ok|note|not checked|dropped|failed|lacking|error"
_WORDS = re.compile(
    rf"^(?:{_FIRST})(?=:|  | [a-z ]+:)|^(?P<purpose>(?:build|tune|serve) +)(?P<ready>ready$|lacks)"
    r"|\bNOT verified\b|\bINCOMPLETE\b",
    re.MULTILINE,
)


def level() -> Level:
    return _level.get()


def is_verbose() -> bool:
    return level() is Level.VERBOSE


@contextmanager
def speaking(wanted: Level) -> Iterator[None]:
    """Everything in the block speaks at that level."""
    before = _level.set(wanted)
    try:
        yield
    finally:
        _level.reset(before)


def note(text: str) -> None:
    """A message that is worth knowing and stops nothing, to stderr."""
    if level() is not Level.QUIET:
        warn(text)


def warn(text: str) -> None:
    """A message about something that went wrong, to stderr."""
    click.echo(coloured(text), err=True)


def show(text: str) -> None:
    """A result for people, to stdout."""
    click.echo(coloured(text))


def coloured(text: str) -> str:
    """Text with the words that tell an outcome in colour, at the beginning of lines."""
    return _WORDS.sub(_in_colour, text)


def _in_colour(match: re.Match[str]) -> str:
    word = match["ready"] or match[0]
    style = click.style(word, fg=_COLOURS[word], bold=True if word == "error" else None)
    return f"{match['purpose'] or ''}{style}"


def colour() -> bool | None:
    """Click's setting: False where nobody wants colours, None to ask each stream."""
    unwanted = os.environ.get("NO_COLOR", "") != "" or os.environ.get("TERM") == "dumb"
    return False if unwanted else None


def spell_out_what_cannot_be_encoded() -> None:
    """Let no character of a path or message end a command whose locale has none like it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def hung_up() -> bool:
    """Whether whoever read this command's output is gone; then what is left of it is dropped, or
    the interpreter would complain when it ends."""
    gone = False
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            number = stream.fileno()
            poll = select.poll()
            poll.register(number, 0)
            # The state of the pipe: a write that has failed leaves nothing to try again with.
            if any(event & select.POLLERR for _, event in poll.poll(0)):
                os.dup2(os.open(os.devnull, os.O_WRONLY), number)
                gone = True
    return gone
