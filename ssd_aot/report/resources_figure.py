"""What the code of each kernel needs: registers, spills, shared memory and bytes, as a plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ssd_aot.bundle.manifest import CodeObject, TargetEntry, VariantEntry
from ssd_aot.report.launch_wording import short_name
from ssd_aot.report.svg import NARROW, PAINT, TIP, WIDE, blank
from ssd_aot.report.vocabulary import kibibytes, plural, shortened, size

MOST_REGISTERS = 255
"""Registers a thread can have on every architecture here: CUDA C++ Programming Guide, "Technical
Specifications per Compute Capability"."""

GAP, HEAD, LINE, FOOT = 26, 28, 26, 26
"""Pixels: between panels, above a panel, a kernel's line, below a panel."""

LETTER, NAME_LETTERS = 7.2, 24
"""Pixels of a letter of a kernel's name, and as many letters as are shown."""


@dataclass(frozen=True)
class _Panel:
    """A quantity of code objects: `limit` is what the hardware allows, or None."""

    title: str
    value: Callable[[CodeObject], int]
    spelled: Callable[[float], str]
    limit: int | None = None
    unit: int = 1


def resources_figure(
    variants: Sequence[VariantEntry], target: TargetEntry, width: int = WIDE
) -> Figure:
    """The plot for one target at one width: panels side by side, or one below the other."""
    panels = (
        _Panel("registers", lambda code: code.registers, str, MOST_REGISTERS),
        _Panel("spilled bytes", lambda code: code.spill_bytes, str),
        _Panel("shared KiB", lambda code: code.shared_bytes,
               lambda value: kibibytes(int(value)), target.shared_bytes_optin, 1024),
        _Panel("code kB", lambda code: code.size_bytes, size, None, 1000),
    )  # fmt: skip
    kernels = sorted({variant.launch.kernel for variant in variants})
    names = 18 + LETTER * min(NAME_LETTERS, max(len(short_name(kernel)) for kernel in kernels))
    block = HEAD + LINE * len(kernels) + FOOT
    across = 1 if width <= NARROW else len(panels)
    height = block * (len(panels) // across)
    figure = blank(width, height)
    room = (width - names - GAP * (across - 1) - 14) / across
    for number, panel in enumerate(panels):
        down, place = divmod(number, across)
        left, top = names + place * (room + GAP), down * block + HEAD
        axes = figure.add_axes(
            (left / width, 1 - (top + LINE * len(kernels)) / height, room / width,
             LINE * len(kernels) / height),
            ylim=(len(kernels) - 0.5, -0.5),
        )  # fmt: skip
        _dots(axes, panel, kernels, variants)
        most = max(panel.value(variant.object) for variant in variants)
        _frame(axes, panel, most, kernels, named=place == 0)
    return figure


def describe(variants: Sequence[VariantEntry]) -> str:
    """The plot in a sentence, for those who cannot see it."""
    codes = [variant.object for variant in variants]
    spilling = sum(code.spill_bytes > 0 for code in codes)
    return (
        f"{plural(len(codes), 'launch', 'launches')}: up to "
        f"{max(code.registers for code in codes)} registers a thread, {spilling} of them spilling, "
        "up to "
        f"{kibibytes(max(code.shared_bytes for code in codes))} of shared memory a block."
    )


def _dots(
    axes: Axes, panel: _Panel, kernels: Sequence[str], variants: Sequence[VariantEntry]
) -> None:
    """A dot for each value that occurs, the larger the more variants have it."""
    for line, kernel in enumerate(kernels):
        codes = (v.object for v in variants if v.launch.kernel == kernel)
        for value, count in sorted(Counter(map(panel.value, codes)).items()):
            launches = plural(count, "launch", "launches")
            told = f"{short_name(kernel)}: {panel.spelled(value)}, {launches}"
            side = 6 + min(8.0, 1.6 * (count - 1) ** 0.5)
            axes.plot(
                [value / panel.unit], [line], "o", markersize=side,
                color=PAINT["measured"], markeredgecolor=PAINT["paper"], clip_on=False,
                gid=TIP + told,
            )  # fmt: skip


def _frame(axes: Axes, panel: _Panel, most: int, kernels: Sequence[str], *, named: bool) -> None:
    axes.patch.set_visible(False)
    axes.spines[:].set_visible(False)
    axes.set_xlim(0, 1.04 * max(most, panel.limit or 0, panel.unit) / panel.unit)
    if panel.limit is not None:
        axes.axvline(
            panel.limit / panel.unit, color=PAINT["missing"], linewidth=1.5,
            linestyle=(0, (3, 2)), gid=f"{TIP}limit: {panel.spelled(panel.limit)}",
        )  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(3, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.tick_params(axis="x", colors=PAINT["muted"], length=0, pad=6, labelsize=11)
    axes.grid(axis="x", color=PAINT["line"], linewidth=1)
    axes.set_axisbelow(True)
    axes.tick_params(axis="y", length=0, labelsize=12, labelcolor=PAINT["ink"], pad=12,
                     labelleft=named)  # fmt: skip
    labels = [shortened(short_name(kernel), NAME_LETTERS) for kernel in kernels]
    axes.set_yticks(range(len(kernels)), labels)
    axes.set_title(panel.title, loc="left", fontsize=11.5, color=PAINT["muted"], pad=10)
