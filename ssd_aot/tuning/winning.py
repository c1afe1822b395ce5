"""The rule by which a winner is found among trials.

A candidate's score is the geometric mean, over the workloads, of its time relative to the best
candidate's for that workload. Among those within the noise of the best score, the earliest of the
candidate list wins, so that measuring again on the same GPU finds the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ssd_aot.launches import Configuration
from ssd_aot.tuning.records import Trial, geometric_mean

NOISE = 0.015
"""Relative: scores this close to the best count as equal to it."""

CONTENDING = 0.05
"""Relative: scores this close to the best are measured again before the winner is named."""


def scores(trials: Iterable[Trial]) -> dict[Configuration, float]:
    """The score of each trial that has times, the best at 1 or a little above."""
    timed = [trial for trial in trials if trial.times_us]
    if not timed:
        return {}
    best = [min(column) for column in zip(*(t.times_us for t in timed), strict=True)]
    return {
        trial.configuration: geometric_mean(
            [time / least for time, least in zip(trial.times_us, best, strict=True)]
        )
        for trial in timed
    }


def within(trials: Iterable[Trial], margin: float) -> list[Configuration]:
    """Those within `margin` of the best score, in no order."""
    scored = scores(trials)
    if not scored:
        return []
    limit = min(scored.values()) * (1 + margin)
    return [configuration for configuration, score in scored.items() if score <= limit]


def winner(trials: Sequence[Trial], order: Sequence[Configuration]) -> Configuration | None:
    """The winner by the rule, or None where no trial has times. `order` is the candidate list."""
    near = within(trials, NOISE)
    return min(near, key=order.index) if near else None


def by_score(trials: Iterable[Trial]) -> list[Configuration]:
    """The best first."""
    scored = scores(trials)
    return sorted(scored, key=lambda configuration: scored[configuration])
