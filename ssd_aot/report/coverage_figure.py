"""The coverage as a picture: a block of squares for each model and tensor-parallel size."""

from __future__ import annotations

from collections import Counter

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ssd_aot.report.coverage import Cell, Coverage, ModelRow
from ssd_aot.report.svg import NARROW, PAINT, TIP, WIDE, blank
from ssd_aot.report.vocabulary import STATUSES, listed, plural, shortened

LARGEST, SMALLEST = 20.0, 4.0
"""Sides of a square in pixels."""

_COUNTED = {
    "measured": "rest on measured launches alone",
    "borrowed": "on some that are borrowed",
    "pinned": "on some that the spec fixes",
    "default": "on some that nobody measured",
    "missing": "lack a launch, so that calls fail",
}

FILLED = ("measured", "borrowed", "pinned")
"""Kinds that fill a square, from below."""

NAME_LETTERS = 34
"""As many letters of a model's name as find room beside its blocks."""

HEAD = 26
"""Pixels for the line of tensor-parallel sizes."""


def coverage_figure(coverage: Coverage, width: int = WIDE) -> Figure:
    """The picture at one width; on a narrow one the names stand above their blocks."""
    narrow = width <= NARROW
    left = 0 if narrow else 292
    pitch = (width - left) / max(1, len(coverage.tp_sizes))
    across, down = len(coverage.columns), len(coverage.lines)
    side = max(SMALLEST, min(LARGEST, (pitch - 12) / max(1, across)))
    block = down * side
    row = block + 54 if narrow else max(40.0, block + 14)
    height = HEAD + row * len(coverage.rows) + 2
    figure = blank(width, height)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    axes.set_axis_off()
    for place, tp in enumerate(coverage.tp_sizes):
        axes.text(left + place * pitch, 12, f"TP {tp}", color=PAINT["muted"], va="center")
    for number, model in enumerate(coverage.rows):
        top = HEAD + number * row
        axes.plot((0, width), (top, top), color=PAINT["line"], linewidth=1, clip_on=False)
        name_at = top + 18 if narrow else top + row / 2 - 8
        _names(axes, model, name_at)
        block_top = top + 46 if narrow else top + (row - block) / 2
        for place, tp in enumerate(coverage.tp_sizes):
            _block(axes, model, tp, left + place * pitch, block_top, side)
    return figure


def swatch(kind: str) -> Figure:
    """A single square, for the legend."""
    figure = blank(16, 16)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, 16), ylim=(16, 0))
    axes.set_axis_off()
    # A default's square is shown as most are met: with some other launches measured.
    launches = {"measured": 1, kind: 1} if kind == "default" else {kind: 1}
    _square(axes, Cell("", Counter(launches)), 1, 1, 14, "")
    return figure


def describe(coverage: Coverage) -> str:
    """The picture in a sentence, for those who cannot see it."""
    counts = coverage.kinds
    parts = [f"{counts[kind]} {words}" for kind, words in _COUNTED.items() if counts[kind]]
    return (
        f"{plural(len({row.model for row in coverage.rows}), 'model')} by "
        f"{plural(len(coverage.tp_sizes), 'tensor-parallel size')}; of "
        f"{plural(sum(counts.values()), 'signature')}, {listed(parts)}."
    )


def _names(axes: Axes, model: ModelRow, y: float) -> None:
    name = shortened(model.model, NAME_LETTERS)
    axes.text(0, y, name, color=PAINT["ink"], fontweight="bold", va="center", fontsize=12.5)
    axes.text(0, y + 17, model.geometry, color=PAINT["muted"], va="center", fontsize=11)


def _block(axes: Axes, model: ModelRow, tp: int, left: float, top: float, side: float) -> None:
    for down, line in enumerate(model.blocks.get(tp, ())):
        for across, cell in enumerate(line):
            if cell is not None:
                _square(axes, cell, left + across * side, top + down * side, side, tip(cell))


def tip(cell: Cell) -> str:
    """What a square says when it is pointed at."""
    kinds = (f"{cell.launches[kind]} {words}" for kind, words in STATUSES.items()
             if cell.launches[kind])  # fmt: skip
    return f"{cell.signature}: of its launches, {', '.join(kinds)}"


def _square(axes: Axes, cell: Cell, x: float, y: float, side: float, told: str) -> None:
    """One signature, filled from below as far as its launches are founded, crossed out where one
    is missing: told apart without colour too."""
    gap = min(2.0, side / 6)
    stroke = min(1.5, side / 8)
    left, inner = x + gap, side - 2 * gap
    bottom = y + side - gap
    for kind in FILLED if cell.kind != "missing" else ():
        part = inner * cell.share(kind)
        bottom -= part
        if part:
            axes.add_patch(Rectangle((left, bottom), inner, part, color=PAINT[kind], linewidth=0))
    axes.add_patch(
        Rectangle(
            (left + stroke / 2, y + gap + stroke / 2), inner - stroke, inner - stroke, fill=False,
            edgecolor=PAINT[cell.kind], linewidth=stroke, gid=TIP + told if told else None,
        )
    )  # fmt: skip
    strokes = {"borrowed": ((1, -1),), "missing": ((-1, 1), (1, -1))}.get(cell.kind, ())
    reach = inner / 2 - 2 * stroke
    for start, end in strokes:
        middle = y + side / 2
        axes.plot(
            (x + side / 2 - reach, x + side / 2 + reach),
            (middle + start * reach, middle + end * reach), linewidth=1.5 * stroke,
            color=PAINT["missing" if cell.kind == "missing" else "paper"],
        )  # fmt: skip
