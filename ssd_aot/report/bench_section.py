"""The section on the last benchmark: whether it is of this bundle's GPUs, plots and tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from markupsafe import Markup

from ssd_aot.bundle.manifest import TargetEntry
from ssd_aot.errors import SpecError
from ssd_aot.report.bench_figure import bench_figure, describe, marker
from ssd_aot.report.bench_results import OURS, BenchResults
from ssd_aot.report.painting import Drawing, Painter
from ssd_aot.report.vocabulary import microseconds
from ssd_aot.targets import target

_WORDS = {
    "drop-in": "drop-in", "prepared": "prepared layer", "graph of ours": "replayed graph",
    "vllm": "vLLM",
}  # fmt: skip


@dataclass(frozen=True)
class TimeTable:
    """Times by workload; `ratios` are an engine's time over that of our drop-in call."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class BenchSection:
    """`notes` say what the file leaves open about this bundle."""

    results: BenchResults
    notes: tuple[str, ...]
    legend: tuple[tuple[Markup, str], ...]
    device: Drawing | None
    device_table: TimeTable
    host: Drawing
    host_table: TimeTable


def bench_section(
    results: BenchResults, targets: Sequence[TargetEntry], digest: str, painter: Painter
) -> BenchSection:
    shown = [c for c in results.contestants(device=False) if not _bare(c)]
    timed = results.contestants(device=True)
    draw = partial(bench_figure, results, shown)
    return BenchSection(
        results=results,
        notes=tuple(_notes(results, targets, digest)),
        legend=tuple(
            (painter.small(marker(place), contestant_words(name)), _legend_words(name))
            for place, name in enumerate(shown)
        ),
        device=painter.both(
            partial(draw, device=True), "Device time by workload",
            describe(results, timed, device=True),
        ) if timed else None,
        device_table=_table(results, device=True),
        host=painter.both(
            partial(draw, device=False), "Host time by workload",
            describe(results, shown, device=False),
        ),
        host_table=_table(results, device=False),
    )  # fmt: skip


def contestant_words(name: str) -> str:
    return _WORDS.get(name, name)


def _legend_words(name: str) -> str:
    ours = name in OURS or name.startswith("graph")
    return f"ssd-aot, {contestant_words(name)}" if ours else contestant_words(name)


def _bare(contestant: str) -> bool:
    """Whether it is bare launches, which are a floor and no way to call the operation."""
    return re.fullmatch(r"\d+ bare launches", contestant) is not None


def _notes(results: BenchResults, targets: Sequence[TargetEntry], digest: str) -> list[str]:
    notes = []
    if not results.digest:
        notes.append(
            "The file does not say which bundle was measured. Take it as a run of this operation "
            "on that machine, not as a statement about this digest."
        )
    elif results.digest != digest:
        notes.append(f"Another bundle was measured: {results.digest}.")
    if not any(_is_device(entry, results.gpu) for entry in targets):
        names = ", ".join(entry.name for entry in targets)
        notes.append(f"The GPU measured is none that this bundle was built for ({names}).")
    return notes


def _is_device(entry: TargetEntry, name: str) -> bool:
    try:
        return target(entry.name).is_device(name, entry.capability)
    except SpecError:
        return False


def _table(results: BenchResults, *, device: bool) -> TimeTable:
    every = results.contestants(device=device)
    bare = [name for name in every if _bare(name)]
    ours = [n for n in every if n in OURS or n.startswith("graph")]
    engines = [n for n in every if n not in (*ours, *bare)]
    columns = [contestant_words(name) for name in (*ours, *engines)]
    columns += [f"{contestant_words(name)} ÷ {contestant_words(OURS[0])}" for name in engines]
    columns += ["bare launches"] if bare else []
    rows = []
    for workload in results.workloads:
        times = {name: _median(results, workload, name, device) for name in every}
        cells = [_spelled(times[name]) for name in (*ours, *engines)]
        base = times.get(OURS[0])
        for name in engines:
            theirs = times[name]
            cells.append(f"{theirs / base:.1f}×" if theirs and base else "–")
        if bare:
            timed = [(name.split()[0], times[name]) for name in bare if times[name]]
            cells.append(", ".join(f"{count}: {_spelled(time)}" for count, time in timed) or "–")
        rows.append((workload, tuple(cells)))
    return TimeTable(tuple(columns), tuple(rows))


def _median(results: BenchResults, workload: str, name: str, device: bool) -> float | None:
    row = results.row(workload, name)
    span = row and (row.device if device else row.host)
    return span.median_us if span else None


def _spelled(value: float | None) -> str:
    return "–" if value is None else microseconds(value)
