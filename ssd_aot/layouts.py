"""A call of the scan as data: what stays for a layer, and what changes from call to call.

A `ScanLayout` (dtypes, geometry, presence, alignment, strides) stays for a layer; `Counts` change
from call to call; which form of the scan runs follows from the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

Form = Literal["walk", "segments", "short_segments"]

TENSORS = (
    "x", "dt", "A", "B", "C", "D", "z", "dt_bias", "seq_idx", "spans", "last_chunks", "out",
    "initial_states", "final_states", "final_slots", "chunk_states",
)  # fmt: skip
"""Every tensor a call can have, in the order in which calls pass them on."""

WIDE_SUFFIXES = ("_batch", "_slot")
"""Strides that are 64-bit arguments: one slot or one batch row may lie past 2**31 elements."""

VECTORISED = ("x", "B", "C", "out", "initial_states", "final_states", "chunk_states")
"""Tensors whose rows are read or written in 16-byte pieces when everything is aligned."""


@dataclass(frozen=True)
class Blocking:
    """Tokens a chunk and tokens a segment of either length, which are whole numbers of chunks."""

    chunk: int = 64
    segment: int = 512
    short_segment: int = 128

    def segment_of(self, form: Form) -> int:
        """Tokens a segment of a form that has some."""
        return self.short_segment if form == "short_segments" else self.segment


SHORT_WORK = 2**16
"""Tokens times heads up to which long segments leave most of an H200 idle: a sequence of 8192
tokens of 16 heads makes 272 programs of 512 tokens, two a multiprocessor."""


@dataclass(frozen=True)
class FormRule:
    """Which form runs: `walk` when sequences times heads reach `walk_programs`, or when no
    sequence can be longer than `walk_tokens` tokens; else `short_segments` for no more than
    `SHORT_WORK` tokens times heads, and `segments` beyond.

    The counts are those the host knows without asking the device.
    """

    walk_programs: int
    walk_tokens: int = 512

    @classmethod
    def for_gpu(cls, multiprocessors: int) -> FormRule:
        """Two programs a multiprocessor fill the GPU: measured on an H200, where the walk of 128
        heads and one sequence takes as long as the segmented form."""
        return cls(walk_programs=2 * multiprocessors)

    def choose(self, layout: ScanLayout, counts: Counts) -> Form:
        if layout.chunk_states:
            return "segments"
        if counts.spans * layout.nheads >= self.walk_programs:
            return "walk"
        if counts.longest <= self.walk_tokens:
            return "walk"
        return "short_segments" if counts.tokens * layout.nheads <= SHORT_WORK else "segments"


class Counts(NamedTuple):
    """What changes from call to call: `tokens` in all, `spans` (sequences, or the caller's chunks
    when their states are wanted), `sequences`, and `span_tokens` a span in batch layout, else 0."""

    tokens: int
    spans: int
    sequences: int
    span_tokens: int = 0

    @property
    def longest(self) -> int:
        """An upper bound of the longest sequence's tokens."""
        return self.span_tokens or self.tokens

    def rows(self, block: int) -> int:
        """Blocks of `block` tokens that any lengths with these counts can need."""
        return self.tokens // block + self.spans


@dataclass(frozen=True)
class ScanLayout:
    """All of a call that keys, strides and workspace depend on.

    `types` maps each tensor that is present to its Triton element type (`bf16`); `strides` maps
    stride arguments to elements; `aligned` says that every vectorised tensor starts on 16 bytes
    and that its strides are multiples of 16 elements.
    """

    nheads: int
    headdim: int
    dstate: int
    ngroups: int
    types: tuple[tuple[str, str], ...]
    strides: tuple[tuple[str, int], ...]
    aligned: bool
    packed: bool
    d_form: Literal[0, 1, 2]
    dt_softplus: bool
    dt_limit: tuple[float, float]
    blocking: Blocking = Blocking()

    def has(self, tensor: str) -> bool:
        return any(name == tensor for name, _ in self.types)

    @cached_property
    def chunk_states(self) -> bool:
        """Whether the states after the caller's chunks are wanted."""
        return self.has("chunk_states")

    @cached_property
    def dtype(self) -> str:
        return dict(self.types)["x"]


def segments(layout: ScanLayout, counts: Counts, form: Form) -> int:
    """Segments that any lengths with these counts can need."""
    if layout.chunk_states:
        return counts.spans
    return counts.rows(layout.blocking.segment_of(form))
