"""The batches that can differ in a launch: one for each combination of argument classes.

Triton tells integers apart by three classes, 1, multiples of 16 and others, and pointers by
whether they are multiples of 16 bytes. An engine passes counts of sequences, chunks and tokens, and
views that begin behind the rows of decode tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ssd_aot.signatures import Signature

RESIDUES = range(8)
"""Decode tokens before a view: a row of 2-byte elements is aligned anew after 8 rows at most."""


@dataclass(frozen=True)
class Scenario:
    """`tokens` of `num_seqs` sequences in `chunks` chunks, behind `decode_tokens` rows."""

    num_seqs: int
    chunks: int
    tokens: int
    decode_tokens: int


def scenarios(signature: Signature) -> Iterator[Scenario]:
    """Every reachable combination of the classes of the four counts, each once or more."""
    size = signature.chunk_size
    most_tokens = max(signature.max_num_batched_tokens, signature.num_seqs[0])
    for num_seqs in _of_each_class(*signature.num_seqs):
        if num_seqs > most_tokens:
            continue
        # A prefix of another length can cut a sequence once more.
        most_chunks = most_tokens // size + 2 * num_seqs
        for chunks in _of_each_class(num_seqs, most_chunks):
            fewest = max(num_seqs, chunks)
            for tokens in _of_each_class(fewest, min(chunks * size, most_tokens)):
                for decode_tokens in RESIDUES:
                    yield Scenario(num_seqs, chunks, tokens, decode_tokens)


def _of_each_class(low: int, high: int) -> tuple[int, ...]:
    """The least number of each class in the range, and its greatest."""
    found: dict[str, int] = {}
    for value in range(low, min(high, low + 17) + 1):
        kind = "==1" if value == 1 else "%16" if value % 16 == 0 else "other"
        found.setdefault(kind, value)
    if high >= low:
        found["greatest"] = high
    return tuple(sorted(set(found.values())))
