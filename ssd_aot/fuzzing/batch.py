"""A drawn batch: the prefill part of one step of a server, as one layer's launch code sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from ssd_aot.fuzzing.promises import Deployment

Skew = Literal["none", "start", "row", "states"]
"""Which views of an `unaligned` layout are off their alignment: x, B and C begin one element late,
their rows are one element longer, or the states begin one late."""


class Memory(NamedTuple):
    """How an engine lays a step's tensors out.

    `pages`: the state cache's slots are pages that hold the convolution's state first, padded to
    4096 bytes with `padded`; `drafts` are the speculative tokens it keeps room for. `shared_rows`:
    the convolution's output has the decode tokens' rows as well. `wide_indices`: int64 indices.
    """

    pages: bool = False
    padded: bool = False
    drafts: int = 0
    shared_rows: bool = False
    wide_indices: bool = False
    skew: Skew = "none"


class Prefill(NamedTuple):
    """One sequence of a step: `tokens` to compute behind `cached` ones, whose state there is."""

    cached: int
    tokens: int


@dataclass(frozen=True)
class Batch:
    """A step's prefill part as one layer sees it, behind the tokens of the requests that decode.

    `call` is the way in which the source is called, one of `LaunchCode.calls`.
    """

    deployment: Deployment
    sequences: tuple[Prefill, ...]
    decode_tokens: int
    initial_states: bool
    call: str
    memory: Memory

    @property
    def tokens(self) -> int:
        return sum(sequence.tokens for sequence in self.sequences)

    @property
    def chunks(self) -> int:
        """The caller's chunks: sequences cut where their context fills a chunk."""
        size = self.deployment.axes["chunk_size"]
        return sum(-(-(cached % size + tokens) // size) for cached, tokens in self.sequences)

    @property
    def promised(self) -> bool:
        """Whether the deployment's spec promises it."""
        own, sequences = self.deployment, self.sequences
        if not own.reaches_batch(self.initial_states, len(sequences)):
            return False
        if not self.initial_states and any(sequence.cached for sequence in sequences):
            return False
        if any(tokens < 1 or tokens % own.unit for _, tokens in sequences):
            return False
        if (self.memory.skew != "none") != (own.axes["layout"] == "unaligned"):
            return False
        if self.memory.skew == "states" and not self.initial_states:
            return False
        return bool(own.axes["IS_CONT_BATCHED"]) or len({tokens for _, tokens in sequences}) == 1
