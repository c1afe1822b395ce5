"""Drawing batches: every shape of head in turn, every deployment of it, each in a server's step.

Most batches are the first step of a server that was drawn so that the step lies in a given reach;
the others are what the same servers do next. So what is rare in serving (a model of another head
dim, one sequence, nothing cached) comes as often as what is common, and what only follows from a
history (a prompt cut by the budget, a preempted request) comes too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from ssd_aot.fuzzing.batch import Batch, Memory, Prefill, Skew
from ssd_aot.fuzzing.launch_code import LaunchCode
from ssd_aot.fuzzing.promises import Deployment, Reach
from ssd_aot.fuzzing.scheduling import Scheduler, Server, Step
from ssd_aot.fuzzing.sizes import any_of, by_magnitude, heavy_tailed, parts_of

BUDGETS = (512, 2048, 4096, 8192, 16384, 65536, 262144)
"""Tokens a step that operators set beside the spec's: a spec bounds no token count."""

FIRST_STEPS = 0.75
"""Share of the batches that are a server's first step."""

PROMPT_TOKENS = 256
LONG_PROMPT = 4096
FEW_SEQUENCES = 16
LONGEST_PREFIX = 2**17
SERVERS = 4096
"""Servers that are kept going at once."""


class Drawer:
    """An endless, reproducible row of batches for one seed."""

    def __init__(self, deployments: tuple[Deployment, ...], code: LaunchCode, seed: int) -> None:
        self._draw = random.Random(seed)
        self._code = code
        self._servers: dict[Deployment, Scheduler] = {}
        places: dict[tuple[int, int], list[tuple[Deployment, Reach]]] = {}
        for own in deployments:
            shape = own.model.headdim, own.model.dstate
            places.setdefault(shape, []).extend((own, reach) for reach in own.reaches)
        self._rounds = [self._round(found) for found in places.values()]

    def __iter__(self) -> Iterator[Batch]:
        while True:
            for places in self._rounds:
                own, reach = next(places)
                yield self._next(own) or self._first(own, reach)

    def _round(self, places: list[tuple[Deployment, Reach]]) -> Iterator[tuple[Deployment, Reach]]:
        """The places over and over, each time in another order."""
        while True:
            self._draw.shuffle(places)
            yield from places

    def _next(self, own: Deployment) -> Batch | None:
        """What the deployment's server does next, None where that is no promised batch."""
        scheduler = self._servers.get(own)
        if scheduler is None or self._draw.random() < FIRST_STEPS:
            return None
        server = scheduler.server
        for _ in range(min(heavy_tailed(self._draw), server.seats)):
            tokens = own.unit * by_magnitude(self._draw, 1, LONG_PROMPT // own.unit)
            cached = self._prefix(own) if self._draw.random() < 0.3 else 0
            scheduler.submit(tokens, cached)
        step = scheduler.step()
        cached_any = any(sequence.cached for sequence in step.sequences)
        # An engine without cached states may still pass states of zeros.
        for initial in (True,) if cached_any else (False, True):
            if step.sequences and own.reaches_batch(initial, len(step.sequences)):
                return self._batch(own, step, initial, server.drafts)
        return None

    def _first(self, own: Deployment, reach: Reach) -> Batch:
        """A first step in the reach."""
        draw = self._draw
        few = min(max(FEW_SEQUENCES, reach.low), reach.high)
        sequences = any_of(draw, reach.low, few if draw.random() < 2 / 3 else reach.high)
        budget = self._budget(own, sequences)
        units = self._units(own, sequences, budget)
        drafts = draw.choice((0, 0, 0, 1, 3))
        if not own.axes["IS_CONT_BATCHED"]:
            rows = (Prefill(0, units // sequences * own.unit),) * sequences
            return self._batch(own, Step(rows, 0), reach.initial_states, drafts)
        lengths = [own.unit * part for part in parts_of(draw, units, sequences)]
        cached = self._cached(own, sequences) if reach.initial_states else [0] * sequences
        scheduler = self._server(own, lengths, cached, budget, drafts)
        if own in self._servers or len(self._servers) < SERVERS:
            self._servers[own] = scheduler
        return self._batch(own, scheduler.step(), reach.initial_states, drafts)

    def _server(
        self, own: Deployment, lengths: list[int], cached: list[int], budget: int, drafts: int
    ) -> Scheduler:
        """A server whose first step has sequences of these lengths behind these cached tokens."""
        draw, tokens, sequences = self._draw, sum(lengths), len(lengths)
        seats = max(own.max_num_seqs, sequences)
        decoding = 0
        if draw.random() < 0.75:
            room = (budget - tokens) // (1 + drafts)
            decoding = min(any_of(draw, 0, seats - sequences), room)
        taken = tokens + decoding * (1 + drafts)
        enough = 2 * sum(cached) + 4 * taken + decoding * own.unit
        cut = draw.random() < 0.3
        server = Server(
            seats=seats,
            budget_tokens=taken if cut else budget,
            unit=own.unit,
            drafts=drafts,
            memory_tokens=enough if draw.random() < 0.3 else None,
        )
        scheduler = Scheduler(server, draw)
        scheduler.decode(decoding)
        if cut:
            lengths[-1] += own.unit * by_magnitude(draw, 1, budget // own.unit)
        for length, prefix in zip(lengths, cached, strict=True):
            scheduler.submit(length, prefix)
        return scheduler

    def _batch(self, own: Deployment, step: Step, initial: bool, drafts: int) -> Batch:
        draw = self._draw
        skews: tuple[Skew, ...] = ("start", "row", "states") if initial else ("start", "row")
        memory = Memory(
            pages=draw.random() < 0.6,
            padded=draw.random() < 0.5,
            drafts=drafts,
            shared_rows=draw.random() < 0.3,
            wide_indices=draw.random() < 0.2,
            skew=draw.choice(skews) if own.axes["layout"] == "unaligned" else "none",
        )
        call = draw.choice(self._code.calls(own))
        return Batch(own, step.sequences, step.decode_tokens, initial, call, memory)

    def _budget(self, own: Deployment, sequences: int) -> int:
        """Tokens a step, enough for so many sequences."""
        least = sequences * own.unit
        fitting = [budget for budget in BUDGETS if budget >= least]
        if fitting and self._draw.random() < 0.4:
            return self._draw.choice(fitting)
        return max(own.max_num_batched_tokens, least)

    def _units(self, own: Deployment, sequences: int, budget: int) -> int:
        """A step's tokens, in units: a server in demand fills its budget, others have a prompt's
        worth and more; every eighth step here has anything."""
        most, kind = budget // own.unit, self._draw.random()
        if kind < 0.25:
            return most
        prompt = min(max(sequences, PROMPT_TOKENS // own.unit), most)
        return any_of(self._draw, sequences if kind < 0.375 else prompt, most)

    def _cached(self, own: Deployment, sequences: int) -> list[int]:
        """Cached tokens of each sequence, of one or more most of the time."""
        share = self._draw.choice((0.0, 0.1, 0.5, 1.0))
        hits = max(1, int(share * sequences)) if share else 0
        cached = [self._prefix(own) for _ in range(hits)] + [0] * (sequences - hits)
        self._draw.shuffle(cached)
        return cached

    def _prefix(self, own: Deployment) -> int:
        """Cached tokens of one sequence, a whole number of cache blocks most of the time."""
        block = self._draw.choice((own.axes["chunk_size"], 16, 1)) if own.unit == 1 else own.unit
        return int(block * by_magnitude(self._draw, 1, LONGEST_PREFIX // block))
