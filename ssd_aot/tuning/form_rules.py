"""Where the walk ends and the segments begin: the rule that follows from both forms' times.

A bundle's manifest carries the rule of each target, so that the plan and the launcher go by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from ssd_aot.layouts import FormRule
from ssd_aot.tuning.records import FormPoint, geometric_mean

WALK_FACTORS = (2.0, 1.0, 1.5, 3.0, 0.75, 0.5)
"""`FormRule.walk_programs` in multiprocessors, the preferred first."""

WALK_TOKENS = (512, 256)

WALK_HOST_US, SEGMENTS_HOST_US = 17.0, 25.0
"""Host time of the two launches of a walk and of the three of the segments, measured beside an
H200: where it is the longer, it is what a step waits for, and what its kernels take does not
matter."""

NOISE = 0.005
"""A rule must be better than an earlier one by more than this, relative, to be taken."""


def form_rule(points: Sequence[FormPoint], multiprocessors: int) -> FormRule | None:
    """The rule that loses least against always taking the better form; None without points."""
    if not points:
        return None
    best: tuple[float, FormRule] | None = None
    for factor, tokens in product(WALK_FACTORS, WALK_TOKENS):
        rule = FormRule(walk_programs=round(factor * multiprocessors), walk_tokens=tokens)
        loss = geometric_mean([_loss(rule, point) for point in points])
        if best is None or loss < best[0] * (1 - NOISE):
            best = loss, rule
    return best[1] if best else None


def _loss(rule: FormRule, point: FormPoint) -> float:
    walks = point.sequences * point.heads >= rule.walk_programs or point.tokens <= rule.walk_tokens
    walk_us = max(point.walk_us, WALK_HOST_US)
    segments_us = max(point.segments_us, SEGMENTS_HOST_US)
    return (walk_us if walks else segments_us) / min(walk_us, segments_us)
