"""Random sizes as serving has them: every order of magnitude, and the ends of a range often."""

from __future__ import annotations

import math
import random


def by_magnitude(draw: random.Random, low: int, high: int) -> int:
    """One of low..high, each order of magnitude as often as the next; `low` for an empty range."""
    if high <= low:
        return low
    drawn = int(math.exp(draw.uniform(math.log(low + 1), math.log(high + 2)))) - 1
    return min(drawn, high)


def any_of(draw: random.Random, low: int, high: int) -> int:
    """One of low..high: the ends and what lies beside powers of two often, the rest by size."""
    kind = draw.random()
    if kind < 0.15:
        return low
    if kind < 0.18:
        return high
    if kind < 0.25:
        return min(low + 1, high)
    found = by_magnitude(draw, low, high)
    if kind < 0.4 and found:
        found = 2 ** (found.bit_length() - 1) + draw.choice((-1, 0, 1))
    return min(max(found, low), high)


def parts_of(draw: random.Random, total: int, parts: int) -> list[int]:
    """`total` in so many parts of one and more: alike, or of a heavy tail."""
    if parts == 1:
        return [total]
    free = total - parts
    if draw.random() < 0.2:
        each, more = divmod(free, parts)
        return [1 + each + (place < more) for place in range(parts)]
    uniform = draw.random
    weights = [1 / (1 - uniform()) for _ in range(parts)]
    scale = free / sum(weights)
    found = [1 + int(weight * scale) for weight in weights]
    found[0] += total - sum(found)
    return found


def heavy_tailed(draw: random.Random) -> int:
    """0 and more: as many draws reach twice a number as half of those that reach it."""
    return int(1 / (1 - draw.random())) - 1
