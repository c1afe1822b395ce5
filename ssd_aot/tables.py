"""Tables for a terminal: no line longer than 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import zip_longest

WIDTH = 80
WIDEST_CELL = 14
"""In columns, but for the first of a table: five such cells still leave it room."""


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns as wide as they need, long cells wrapped so that the whole fits the terminal."""
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    widths = [min(width, WIDEST_CELL) for width in others]
    widths.insert(0, min(first, WIDTH - sum(widths) - 2 * len(widths)))
    lines = []
    for row in rows:
        cells = [cut(cell, width) for cell, width in zip(row, widths, strict=True)]
        for texts in zip_longest(*cells, fillvalue=""):
            padded = (f"{text:<{width}}" for text, width in zip(texts, widths, strict=True))
            lines.append("  ".join(padded).rstrip())
    return lines


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
