"""Tables for a terminal: no line longer than 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import zip_longest

WIDTH = 80
WIDEST_CELLS = range(14, 8, -1)
"""In columns, but for the first of a table: five of the widest still leave it room, and the
narrowest holds each word that tables have."""

FIRST = 12
"""Columns that the first of a table keeps while others can be narrower."""


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns as wide as they need, long cells wrapped so that the whole fits the terminal."""
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    for widest in WIDEST_CELLS:
        widths = [min(width, widest) for width in others]
        left = WIDTH - sum(widths) - 2 * len(widths)
        if left >= min(first, FIRST):
            break
    widths.insert(0, max(min(first, left), 1))
    lines = []
    for row in rows:
        cells = [cut(cell, width) for cell, width in zip(row, widths, strict=True)]
        for texts in zip_longest(*cells, fillvalue=""):
            padded = (f"{text:<{width}}" for text, width in zip(texts, widths, strict=True))
            lines.append("  ".join(padded).rstrip())
    return lines


def fits(rows: Sequence[tuple[str, ...]]) -> bool:
    """Whether the table's first column would have room beside the others."""
    others = [max(map(len, column)) for column in list(zip(*rows, strict=True))[1:]]
    room = WIDTH - sum(2 + min(width, WIDEST_CELLS[-1]) for width in others)
    return room >= min(FIRST, max(len(row[0]) for row in rows))


def cut(text: str, width: int) -> list[str]:
    """The text in lines of at most `width` columns, one line at least."""
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


def field(name: str, value: str) -> list[str]:
    """A name and its value beside it."""
    return textwrap.wrap(
        value,
        WIDTH,
        initial_indent=f"{name:<11}",
        subsequent_indent=" " * 11,
        break_on_hyphens=False,
    )
