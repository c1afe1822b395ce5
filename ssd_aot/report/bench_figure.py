"""Benchmark times as a plot: a band for each workload, in it a line for each contestant."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from ssd_aot.report.bench_results import BenchResults, Span
from ssd_aot.report.svg import NARROW, PAINT, TIP, WIDE, blank
from ssd_aot.report.vocabulary import microseconds, plural

STYLES = (("o", "first"), ("D", "second"), ("s", "third"), ("^", "fourth"), ("v", "fifth"))
"""Marker and role of each contestant in the order they entered: told apart without colour too."""

LINE, AROUND, HEAD, FOOT, NAMES, TEXT_LINE = 13, 8, 10, 30, 232, 18
"""Pixels: a contestant's line, around a workload's, above and below, the workloads' names, and a
name's line where it stands above."""


def bench_figure(
    results: BenchResults, contestants: Sequence[str], width: int = WIDE, *, device: bool
) -> Figure:
    """Device or host times at one width, on a logarithmic axis. A contestant's mark follows from
    its place in `contestants`; those without such times are left out."""
    shown = [name for name in contestants if name in results.contestants(device=device)]
    narrow = width <= NARROW
    above = TEXT_LINE if narrow else 0
    row = above + LINE * len(shown) + AROUND
    left, right = (10, width - 14) if narrow else (NAMES, width - 40)
    inner = row * len(results.workloads)
    height = HEAD + inner + FOOT
    figure = blank(width, height)
    words = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    words.set_axis_off()
    axes = figure.add_axes(
        (left / width, FOOT / height, (right - left) / width, inner / height), ylim=(inner, 0)
    )
    for number, workload in enumerate(results.workloads):
        top = row * number
        if number % 2 == 0:
            words.axhspan(HEAD + top, HEAD + top + row, color=PAINT["panel"], linewidth=0)
        y = TEXT_LINE / 2 + 3 if narrow else row / 2
        words.text(8, HEAD + top + y, workload, fontsize=11.5, color=PAINT["ink"], va="center")
        for place, contestant in enumerate(shown):
            found = results.row(workload, contestant)
            span = found and (found.device if device else found.host)
            if span:
                middle = top + above + AROUND / 2 + LINE * (place + 0.5)
                _mark(
                    axes, span, middle, contestants.index(contestant), f"{workload}, {contestant}"
                )
    _frame(axes)
    return figure


def describe(results: BenchResults, contestants: Sequence[str], *, device: bool) -> str:
    """The plot in a sentence, for those who cannot see it."""
    kind = "Device" if device else "Host"
    return (
        f"{kind} times of {', '.join(contestants)} on "
        f"{plural(len(results.workloads), 'workload')}, in microseconds on a logarithmic axis; the "
        "table below has them as numbers."
    )


def marker(place: int) -> Figure:
    """A contestant's mark alone, for the legend."""
    figure = blank(16, 16)
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, 16), ylim=(16, 0))
    axes.set_axis_off()
    shape, role = STYLES[place % len(STYLES)]
    axes.plot([8], [8], shape, color=PAINT[role], markersize=8, markeredgewidth=0)
    return figure


def _mark(axes: Axes, span: Span, y: float, place: int, told: str) -> None:
    shape, role = STYLES[place % len(STYLES)]
    axes.plot((span.low_us, span.high_us), (y, y), color=PAINT[role], linewidth=1.5)
    axes.plot([span.median_us], [y], shape, color=PAINT[role], markersize=7, markeredgewidth=0,
              clip_on=False, gid=f"{TIP}{told}: {microseconds(span.median_us)} µs")  # fmt: skip


def _frame(axes: Axes) -> None:
    axes.patch.set_visible(False)
    axes.spines[:].set_visible(False)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.minorticks_off()
    axes.tick_params(axis="x", colors=PAINT["muted"], length=0, pad=6, labelsize=11)
    axes.tick_params(axis="y", left=False, labelleft=False)
    axes.grid(axis="x", color=PAINT["line"], linewidth=1)
    axes.set_axisbelow(True)
    axes.text(1, 0, " µs", transform=axes.transAxes, fontsize=11, color=PAINT["muted"], va="top",
              ha="left")  # fmt: skip
