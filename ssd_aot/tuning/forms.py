"""Both forms of the scan timed over the batches where either may win; `form_rules` concludes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ssd_aot.launches import Launch
from ssd_aot.layouts import SHORT_WORK, Form
from ssd_aot.tuning.groups import Call
from ssd_aot.tuning.measuring import Chosen, Measure
from ssd_aot.tuning.records import FormPoint
from ssd_aot.tuning.workloads import Workload, scans_of, timed_problems

SHAPES = ((1, 512), (1, 2048), (1, 8192), (2, 1024), (2, 4096), (4, 512), (4, 2048), (8, 1024))
"""(sequences, tokens of each); the segmented form is the one that this much work takes."""


@dataclass(frozen=True)
class FormPair:
    """A place where both forms are to be timed: the walk's call and the segments', and a batch."""

    geometry: str
    heads: int
    calls: tuple[Call, Call]
    lengths: tuple[int, ...]

    @property
    def place(self) -> tuple[str, int, int, int]:
        """As `FormPoint.place`."""
        return self.geometry, self.heads, len(self.lengths), sum(self.lengths)

    def point(self, times_us: Sequence[float], date: str) -> FormPoint:
        walk_us, segments_us = times_us
        return FormPoint(*self.place, walk_us, segments_us, date)


def form_pairs(
    calls: Sequence[Call],
    planned: Mapping[Launch, object],
    known: Collection[tuple[str, int, int, int]] = (),
) -> list[FormPair]:
    """Every geometry, heads from fewest to most, in each of the `SHAPES`; places in `known` are
    left out."""
    pairs: list[FormPair] = []
    for (geometry, heads), by_form in _calls(calls, planned).items():
        for sequences, length in SHAPES:
            little = sequences * length * heads <= SHORT_WORK
            cut = by_form["short_segments" if little else "segments"]
            pair = FormPair(geometry, heads, (by_form["walk"], cut), (length,) * sequences)
            if pair.place not in known:
                pairs.append(pair)
    return pairs


def form_times(
    calls: Sequence[Call], lengths: tuple[int, ...], chosen: Chosen, measure: Measure
) -> tuple[float, ...]:
    """Device times, in microseconds, of a batch of these lengths under each of the calls."""
    times = []
    for call in calls:
        problems = timed_problems(Workload(call, lengths), measure.device)
        executor = measure.executor(call.form, chosen.variants(call))
        times.append(round(measure.median_us(executor, scans_of(call, problems).kept), 3))
    return tuple(times)


def _calls(
    calls: Sequence[Call], planned: Mapping[Launch, object]
) -> dict[tuple[str, int], dict[Form, Call]]:
    """The calls of one signature by form, for each geometry with its fewest, middle and most
    heads."""
    found: dict[tuple[str, int], dict[Form, Call]] = {}
    for call in calls:
        s = call.signature
        plain = s.has_initstates and s.state_dtype == "fp32" and call.final_states
        if plain and not s.intermediate_states and all(name in planned for name in call.launches):
            place = f"{s.headdim}x{s.dstate} {s.dtype}", s.nheads
            found.setdefault(place, {}).setdefault(call.form, call)
    heads: dict[str, list[int]] = {}
    for (geometry, count), pair in sorted(found.items()):
        if len(pair) == 3:
            heads.setdefault(geometry, []).append(count)
    places = [
        (geometry, count)
        for geometry, counts in heads.items()
        for count in sorted({counts[0], counts[len(counts) // 2], counts[-1]})
    ]
    return {place: found[place] for place in places}
