"""The batches a signature can reach in serving, thinned to those that can differ in a launch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from ssd_aot.layouts import SHORT_WORK, FormRule
from ssd_aot.signatures import Signature

MOST_TOKENS = 2**18
"""More than any form's bound, for one head and more."""

LONGEST_TOKENS = 700
"""Long enough for two segments and eleven chunks; the reference steps through every token."""

DECODE_TOKENS = (1, 3)
"""Decode tokens ahead of a judged prefill's rows: odd counts leave dt without alignment."""

LONGEST_IN_SEGMENTS = 2**14
"""More tokens than that the reference is not made to step through for the sake of long segments."""


@dataclass(frozen=True)
class Batch:
    """Sequences of these lengths, behind `decode_tokens` tokens of running requests that share
    the rows of the projection and the convolution; `paged` where the state cache's slots are pages
    that hold the convolution's state too."""

    lengths: tuple[int, ...]
    decode_tokens: int = 0
    paged: bool = False


PLACES = ((0, False), (1, False), (2, True))
"""Behind none, an odd and an even number of decode tokens, the state cache dense or in pages."""


def batches(signature: Signature, cut_tokens: int) -> Iterator[Batch]:
    """Batches over the ends of the ranges: fewest and most sequences, shortest and longest tokens
    and just enough for a sequence of `cut_tokens`, in all of `PLACES`.

    A chunk-aligned signature has lengths that are multiples of its chunk size.
    """
    unit = signature.chunk_size if signature.lengths == "chunk_aligned" else 1
    low, high = signature.num_seqs
    for num_seqs in sorted({low, min(low + 1, high), high}):
        longest = longest_length(signature, num_seqs)
        cut = cut_lengths(signature, num_seqs, cut_tokens)
        alike = {unit, min(signature.chunk_size, longest), longest}
        lengths = {(length,) * num_seqs for length in alike}
        if sum(cut) <= longest * num_seqs:
            lengths.add(cut)
        for each in sorted(lengths):
            for decode_tokens, paged in PLACES:
                yield Batch(each, decode_tokens, paged)


def longest_length(signature: Signature, num_seqs: int) -> int:
    """Tokens of each of `num_seqs` sequences in the largest batch. The spec's token budget is no
    bound: which forms run depends on the tokens, and a server may be given a larger budget."""
    unit = signature.chunk_size if signature.lengths == "chunk_aligned" else 1
    tokens = max(signature.max_num_batched_tokens, MOST_TOKENS)
    return max(unit, tokens // num_seqs // unit * unit)


def cut_lengths(signature: Signature, num_seqs: int, cut_tokens: int) -> tuple[int, ...]:
    """The fewest tokens of `num_seqs` sequences that leave room for one of `cut_tokens`, as far as
    the host can tell: packed, it knows their sum alone, so all but the first are the shortest."""
    unit = signature.chunk_size if signature.lengths == "chunk_aligned" else 1
    units = -(-cut_tokens // unit)
    if not signature.is_cont_batched:
        return (units * unit,) * num_seqs
    return (max(units - num_seqs + 1, 1) * unit, *(unit,) * (num_seqs - 1))


def lengths_of(signature: Signature) -> list[tuple[int, ...]]:
    """Sequence lengths that reach every form and every edge the signature allows: few sequences,
    one of them of several segments; some within a chunk or two; some of a few chunks."""
    draw = random.Random(signature.id)
    low, high = signature.num_seqs
    unit = signature.chunk_size if signature.lengths == "chunk_aligned" else 1

    def lengths(count: int, longest: int) -> tuple[int, ...]:
        drawn = [max(unit, draw.randint(1, longest // 8) // unit * unit) for _ in range(count)]
        drawn[-1] = max(unit, longest // unit * unit)
        if not signature.is_cont_batched:
            drawn = [drawn[-1]] * count
        elif count > 2 and unit == 1:
            drawn[1] = 0
        return tuple(drawn)

    many = min(high, max(low, 5))
    return [lengths(low, LONGEST_TOKENS), lengths(many, 67), lengths(many, 200)]


def lengths_in_segments(signature: Signature, rule: FormRule) -> tuple[int, ...] | None:
    """The fewest tokens that run in long segments under `rule`; None where none do, or where that
    takes more than `LONGEST_IN_SEGMENTS`."""
    count = signature.num_seqs[0]
    tokens = max(SHORT_WORK // signature.nheads, rule.walk_tokens) + 1
    walks = count * signature.nheads >= rule.walk_programs or signature.intermediate_states
    if walks or tokens > LONGEST_IN_SEGMENTS:
        return None
    return cut_lengths(signature, count, tokens)
