"""Device times by replaying what was captured, the calls in turn so that no cache helps."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch

REPLAYS = 24
WARM_REPLAYS = 3
SMALL_WORK = 2**18
"""Tokens times heads: below, one replay holds more rounds, so that its start weighs little."""
SMALL_ROUNDS, ROUNDS = 4, 2

Run = Callable[[], object]


def rounds_for(tokens: int, heads: int) -> int:
    """How often a replay goes through its calls."""
    return SMALL_ROUNDS if tokens * heads < SMALL_WORK else ROUNDS


def replayed_us(calls: Sequence[Run], rounds: int, device: torch.device) -> float:
    """Median device time of one of these calls, in microseconds, over replays of a graph of them.

    Raises RuntimeError for calls that cannot be captured.
    """
    warm(calls, device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                call()
    return _median_us(graph.replay, WARM_REPLAYS, device) / (rounds * len(calls))


def launched_us(calls: Sequence[Run], rounds: int, device: torch.device) -> float:
    """As `replayed_us`, each call launched anew between events: for calls that no graph can hold.
    Where the host is slower than the device, the host's time is part of it."""
    warm(calls, device)

    def every() -> None:
        for _ in range(rounds):
            for call in calls:
                call()

    return _median_us(every, WARM_REPLAYS, device) / (rounds * len(calls))


def warm(calls: Sequence[Run], device: torch.device) -> None:
    """Each call once, to its end: what a call does at its first time is done."""
    for call in calls:
        call()
    torch.cuda.synchronize(device)


def _median_us(run: Run, warmed: int, device: torch.device) -> float:
    for _ in range(warmed):
        run()
    marks = [
        torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        for _ in range(REPLAYS + 1)
    ]
    marks[0].record()
    for mark in marks[1:]:
        run()
        mark.record()
    torch.cuda.synchronize(device)
    times = [float(a.elapsed_time(b)) for a, b in pairwise(marks)]
    return statistics.median(times) * 1e3
