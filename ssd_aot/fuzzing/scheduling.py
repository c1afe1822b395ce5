"""An engine's scheduler in small: which requests share a step, and how many tokens of each.

Running requests come first, then waiting ones while seats and the token budget last; prompts are
cut where the budget ends, begin behind a cached prefix, and start anew when memory ran out.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from ssd_aot.fuzzing.batch import Prefill
from ssd_aot.fuzzing.sizes import heavy_tailed


class Step(NamedTuple):
    """What runs together: prefill parts, behind `decode_tokens` tokens of decoding requests."""

    sequences: tuple[Prefill, ...]
    decode_tokens: int


@dataclass(frozen=True)
class Server:
    """What an operator sets. `seats` requests run at once, a step has `budget_tokens`; prompts are
    cut at multiples of `unit` tokens; a decoding request takes one token and `drafts` speculative
    ones; `memory_tokens` of prompts fit, None: any."""

    seats: int
    budget_tokens: int
    unit: int = 1
    drafts: int = 0
    memory_tokens: int | None = None


@dataclass(eq=False, slots=True)
class _Request:
    prompt: int
    computed: int
    reply: int
    done_at: int = 0


@dataclass
class Scheduler:
    """A server between two steps."""

    server: Server
    draw: random.Random
    _waiting: deque[_Request] = field(default_factory=deque)
    _prefilling: list[_Request] = field(default_factory=list)
    _decoding: list[_Request] = field(default_factory=list)
    _now: int = 0

    def decode(self, requests: int) -> None:
        """Let so many requests be in the middle of their replies."""
        stretch = heavy_tailed(self.draw) + 1
        for place in range(requests):
            done_at = self._now + 2 + place * stretch // requests
            self._decoding.append(_Request(self.server.unit, self.server.unit, 0, done_at))

    def submit(self, tokens: int, cached: int = 0) -> None:
        """A request with `tokens` of its prompt to compute, behind a cached prefix."""
        self._waiting.append(_Request(cached + tokens, cached, heavy_tailed(self.draw)))

    def step(self) -> Step:
        """The next step; without sequences when only decoding requests run."""
        self._now += 1
        self._decoding = [request for request in self._decoding if request.done_at > self._now]
        self._preempt()
        left = self.server.budget_tokens
        decode_tokens = min(len(self._decoding) * (1 + self.server.drafts), left)
        left -= decode_tokens
        sequences: list[Prefill] = []
        for request in tuple(self._prefilling):
            left -= self._prefill(request, left, sequences)
        # A request keeps its seat to the end of the step, also one that is done by then.
        seats = self.server.seats - len(self._decoding) - len(self._prefilling)
        for _ in range(min(seats, len(self._waiting))):
            request = self._waiting[0]
            taken = self._prefill(request, left, sequences)
            if not taken:
                break
            left -= taken
            self._waiting.popleft()
            if request.computed < request.prompt:
                self._prefilling.append(request)
            else:
                self._begin_reply(request)
        for request in self._prefilling:
            if request.computed >= request.prompt:
                self._begin_reply(request)
        self._prefilling = [r for r in self._prefilling if r.computed < r.prompt]
        return Step(tuple(sequences), decode_tokens)

    def _prefill(self, request: _Request, left: int, sequences: list[Prefill]) -> int:
        tokens = min(request.prompt - request.computed, left)
        tokens -= tokens % self.server.unit
        if tokens > 0:
            sequences.append(Prefill(request.computed, tokens))
            request.computed += tokens
        return tokens

    def _begin_reply(self, request: _Request) -> None:
        request.done_at = self._now + request.reply
        if request.reply:
            self._decoding.append(request)

    def _preempt(self) -> None:
        """While memory is short the newest request loses its state and waits first in line."""
        if self.server.memory_tokens is None:
            return
        running = self._decoding + self._prefilling
        excess = sum(request.computed for request in running) - self.server.memory_tokens
        while excess > 0 and running:
            request = running.pop()
            (self._prefilling or self._decoding).pop()
            excess -= request.computed
            self._waiting.appendleft(_Request(request.prompt, 0, request.reply))
