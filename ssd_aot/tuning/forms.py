"""Both forms of the scan timed over the batches where either may win; `form_rules` concludes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ssd_aot.launches import Launch
from ssd_aot.layouts import SHORT_WORK, Form
from ssd_aot.tuning.attempts import BudgetSpent, Clock
from ssd_aot.tuning.groups import Call
from ssd_aot.tuning.measuring import Chosen, Measure
from ssd_aot.tuning.records import FormPoint
from ssd_aot.tuning.workloads import Workload, scans_of, timed_problems

SHAPES = ((1, 512), (1, 2048), (1, 8192), (2, 1024), (2, 4096), (4, 512), (4, 2048), (8, 1024))
"""(sequences, tokens of each); the segmented form is the one that this much work takes."""


def measure_forms(
    calls: Sequence[Call],
    chosen: Chosen,
    measure: Measure,
    clock: Clock,
    date: str,
    known: Iterable[FormPoint] = (),
) -> tuple[tuple[FormPoint, ...], bool]:
    """Points of every geometry, heads from fewest to most, and whether the budget sufficed.

    Places of `known` points are left out.
    """
    done = {point.place for point in known}
    points: list[FormPoint] = []
    try:
        for (geometry, heads), by_form in _pairs(calls, chosen.candidates).items():
            for sequences, length in SHAPES:
                if (geometry, heads, sequences, sequences * length) in done:
                    continue
                clock.check()
                little = sequences * length * heads <= SHORT_WORK
                cut = by_form["short_segments" if little else "segments"]
                walk_us, segments_us = (
                    _time(call, (length,) * sequences, chosen, measure)
                    for call in (by_form["walk"], cut)
                )
                points.append(
                    FormPoint(
                        geometry, heads, sequences, sequences * length, walk_us, segments_us, date
                    )
                )  # fmt: skip
    except BudgetSpent:
        return tuple(points), False
    return tuple(points), True


def _pairs(
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


def _time(call: Call, lengths: tuple[int, ...], chosen: Chosen, measure: Measure) -> float:
    problems = timed_problems(Workload(call, lengths), measure.device)
    executor = measure.executor(call.form, chosen.variants(call))
    return round(measure.median_us(executor, scans_of(call, problems).kept), 3)
