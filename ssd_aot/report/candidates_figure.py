"""What the candidates of a launch measured, as a plot: a line each, the fastest on top."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from matplotlib.transforms import ScaledTranslation

from ssd_aot.report.launch_groups import CandidateTrial, Member
from ssd_aot.report.launch_wording import compact_words, heading, parameter_words, telling
from ssd_aot.report.svg import NARROW, PAINT, TIP, WIDE, blank
from ssd_aot.report.vocabulary import microseconds, plural

HEAD, LINE, FOOT = 50, 21, 6
"""Pixels of the headings, of a candidate's line, and below the last."""

TAG, COLUMN, NUMBER = 104, 44, 48
"""Pixels across: the column of tags, one for a parameter at least, and one for a number."""

TEXT_LINE, TIME = 15, 78
"""Pixels of a line of words on a narrow figure, and of the time to the right of the last."""

MANY_TIMES = 4.0
"""From this ratio of the slowest to the fastest on, the axis is logarithmic."""

LETTER = 6.4
"""Pixels of a letter of the small text, on the wide side for most fonts."""


@dataclass(frozen=True)
class _Line:
    """A candidate's line: `top` and `bottom` of all of it and `middle` of its marks, in pixels;
    `ratios` are its times, each relative to the best of that batch; `words` stand above the marks,
    where they do."""

    trial: CandidateTrial
    ratios: tuple[float, ...]
    words: list[str]
    top: float
    middle: float
    bottom: float


def candidates_figure(member: Member, width: int = WIDE) -> Figure:
    """The plot at one width. On a wide one parameters and numbers stand in columns beside the
    marks, on a narrow one above them."""
    narrow = width <= NARROW
    trials = member.trials()
    parameters = telling([trial.configuration for trial in trials])
    lines = _lines(trials, parameters if narrow else None)
    height = lines[-1].bottom + FOOT
    figure = blank(width, height)
    words = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
    words.set_axis_off()
    for line in lines:
        if line.trial.held:
            words.axhspan(line.top, line.bottom, color=PAINT["band"], linewidth=0)
    if narrow:
        left, right = 8.0, width - 12.0
        _words_above(words, lines, width)
    else:
        left = TAG + sum(map(_column, parameters)) + 14.0
        right = width - 3.0 * NUMBER - 8
        _words_beside(words, lines, parameters, width)
    strip = figure.add_axes(
        (left / width, FOOT / height, (right - left) / width, 1 - (HEAD + FOOT) / height),
        ylim=(height - FOOT, HEAD),
    )
    _scale(strip, max((ratio for line in lines for ratio in line.ratios), default=1.0))
    for line in lines:
        # A rejected candidate has no mean, so that its reason may reach into that column.
        _mark(strip, line, letters=int((right - left + (0 if narrow else NUMBER)) / LETTER))
    return figure


def describe(member: Member) -> str:
    """The plot in a sentence, for those who cannot see it."""
    trials = member.trials()
    timed = [trial for trial in trials if trial.score is not None]
    rejected = len(trials) - len(timed)
    if not timed:
        return f"None of {plural(len(trials), 'candidate')} was timed."
    slowest = max(trial.score or 1.0 for trial in timed)
    return (
        f"{plural(len(timed), 'candidate')} timed, {rejected} rejected; the slowest took "
        f"{slowest:.2f} times as long as the fastest."
    )


def tag(trial: CandidateTrial) -> str:
    """What a candidate is beside one of many."""
    names = ("winner", trial.winner), ("in bundle", trial.held and not trial.winner), (
        "default", trial.default,
    )  # fmt: skip
    return ", ".join(name for name, true in names if true)


def _lines(trials: Sequence[CandidateTrial], parameters: Sequence[str] | None) -> list[_Line]:
    """The lines below each other, with the words of `parameters` above the marks of each."""
    timed = [t.trial.times_us for t in trials if t.score is not None]
    best = [min(column) for column in zip(*timed, strict=True)]
    lines: list[_Line] = []
    top = float(HEAD)
    for trial in trials:
        words: list[str] = []
        if parameters is not None:
            # Only behind a dot may a line end.
            text = compact_words(trial.configuration, parameters).replace(" ", "\u00a0")
            broken = textwrap.wrap(text.replace("·\u00a0", "· "), int((NARROW - TIME) / LETTER))
            words = [*filter(None, [tag(trial)]), *broken]
        above = TEXT_LINE * len(words) + 2 if words else 0
        ratios = (
            tuple(time / least for time, least in zip(trial.trial.times_us, best, strict=True))
            if trial.score is not None
            else ()
        )
        bottom = top + above + LINE
        lines.append(_Line(trial, ratios, words, top, top + above + LINE / 2, bottom))
        top = lines[-1].bottom
    return lines


def _words_beside(
    words: Axes, lines: Sequence[_Line], parameters: Sequence[str], total: float
) -> None:
    widths = list(map(_column, parameters))
    middles = [TAG + sum(widths[:place]) + width / 2 for place, width in enumerate(widths)]
    edges = [total - NUMBER * place - 4.0 for place in (2, 1, 0)]
    titles = (("mean", "µs"), ("regis-", "ters"), ("spilled", "bytes"))
    for x, parameter in zip(middles, parameters, strict=True):
        for row, text in enumerate(heading(parameter)):
            words.text(x, 18 + 14 * row, text, color=PAINT["muted"], ha="center", fontsize=11)
    for x, title in zip(edges, titles, strict=True):
        for row, text in enumerate(title):
            words.text(x, 18 + 14 * row, text, color=PAINT["muted"], ha="right", fontsize=11)
    for line in lines:
        values, y = line.trial.configuration.to_json(), line.middle
        words.text(4, y, tag(line.trial), fontweight="bold", fontsize=11, va="center",
                   color=PAINT["measured" if line.trial.held else "ink"])  # fmt: skip
        for x, parameter in zip(middles, parameters, strict=True):
            words.text(x, y, parameter_words(parameter, values.get(parameter)), fontsize=11.5,
                       color=PAINT["ink"], ha="center", va="center")  # fmt: skip
        for x, text in zip(edges, _numbers(line.trial), strict=True):
            words.text(x, y, text, fontsize=11.5, color=PAINT["ink"], ha="right", va="center")


def _column(parameter: str) -> float:
    """Pixels of a parameter's column: its heading and a gap fit."""
    return max(COLUMN, LETTER * max(map(len, heading(parameter))) + 10)


def _words_above(words: Axes, lines: Sequence[_Line], width: float) -> None:
    for line in lines:
        y = line.top + TEXT_LINE / 2 + 3
        for row, text in enumerate(line.words):
            named = row == 0 and text == tag(line.trial)
            words.text(8, y + TEXT_LINE * row, text, fontsize=11, va="center",
                       fontweight="bold" if named else "normal",
                       color=PAINT["measured" if named and line.trial.held else "ink"])  # fmt: skip
        time = _numbers(line.trial)[0]
        words.text(width - 8, y + TEXT_LINE * (len(line.words) - 1), f"{time} µs" if time else "",
                   fontsize=11, color=PAINT["ink"], ha="right", va="center")  # fmt: skip


def _scale(strip: Axes, slowest: float) -> None:
    strip.patch.set_visible(False)
    if slowest > MANY_TIMES:
        strip.set_xscale("log")
        strip.set_xlim(0.95, slowest * 1.05)
    else:
        span = max(0.1, slowest - 1)
        strip.set_xlim(1 - 0.03 * span, 1 + 1.01 * span)
        strip.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    strip.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    strip.minorticks_off()
    strip.xaxis.tick_top()
    strip.tick_params(axis="x", colors=PAINT["muted"], length=0, pad=3, labelsize=11)
    strip.tick_params(axis="y", left=False, labelleft=False)
    strip.spines[:].set_visible(False)
    strip.grid(axis="x", color=PAINT["line"], linewidth=1)
    strip.set_axisbelow(True)
    above = ScaledTranslation(0, 26 / 72, strip.figure.dpi_scale_trans)
    strip.text(0, 1, "time, the fastest being 1", transform=strip.transAxes + above,
               color=PAINT["muted"], fontsize=11)  # fmt: skip


def _mark(strip: Axes, line: _Line, letters: int) -> None:
    trial, y = line.trial, line.middle
    if trial.score is None:
        reason = trial.trial.rejected or "not timed"
        text = textwrap.shorten(f"× rejected: {reason}", letters, placeholder=" …")
        strip.text(0, y, text, color=PAINT["missing"], va="center", fontsize=11, gid=TIP + reason,
                   transform=strip.get_yaxis_transform())  # fmt: skip
        return
    own = PAINT["measured" if trial.held else "muted"]
    edge = PAINT["measured" if trial.held else "ink" if trial.default else "paper"]
    face = PAINT["measured" if trial.held else "paper" if trial.default else "muted"]
    ends = min(line.ratios), max(line.ratios)
    strip.plot(ends, (y, y), color=own, linewidth=1, clip_on=False)
    strip.plot(line.ratios, [y] * len(line.ratios), "|", color=own, markersize=8,
               markeredgewidth=1.2, clip_on=False)  # fmt: skip
    strip.plot(
        [trial.score], [y], "o", markersize=9, markeredgewidth=2, markerfacecolor=face,
        markeredgecolor=edge, clip_on=False,
        gid=f"{TIP}{trial.configuration}: {trial.score:.3f} times the fastest's time",
    )  # fmt: skip


def _numbers(trial: CandidateTrial) -> tuple[str, str, str]:
    mean = trial.trial.mean_us
    registers, spilled = trial.trial.registers, trial.trial.spill_bytes
    return (
        "" if mean is None else microseconds(mean),
        "" if registers is None else str(registers),
        "" if spilled is None else str(spilled),
    )
