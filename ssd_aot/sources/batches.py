"""The batches a signature can reach in serving, thinned to those that can differ in a launch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ssd_aot.signatures import Signature

MOST_TOKENS = 2**18
"""More than any form's bound, for one head and more."""


@dataclass(frozen=True)
class Batch:
    """Sequences of these lengths, behind `decode_tokens` tokens of running requests that share
    the rows of the projection and the convolution."""

    lengths: tuple[int, ...]
    decode_tokens: int = 0


def batches(signature: Signature, cut_tokens: int) -> Iterator[Batch]:
    """Batches over the ends of the ranges: fewest and most sequences, shortest and longest tokens
    and just enough for a sequence of `cut_tokens`, behind none, an odd and an even number of decode
    tokens.

    A chunk-aligned signature has lengths that are multiples of its chunk size.
    """
    unit = signature.chunk_size if signature.lengths == "chunk_aligned" else 1
    low, high = signature.num_seqs
    for num_seqs in sorted({low, min(low + 1, high), high}):
        longest = longest_length(signature, num_seqs)
        cut = cut_length(signature, num_seqs, cut_tokens)
        lengths = {unit, min(signature.chunk_size, longest), min(cut, longest), longest}
        for length in sorted(lengths):
            for decode_tokens in (0, 1, 2):
                yield Batch((length,) * num_seqs, decode_tokens)


def longest_length(signature: Signature, num_seqs: int) -> int:
    """Tokens of each of `num_seqs` sequences in the largest batch. The spec's token budget is no
    bound: which forms run depends on the tokens, and a server may be given a larger budget."""
    unit = signature.chunk_size if signature.lengths == "chunk_aligned" else 1
    tokens = max(signature.max_num_batched_tokens, MOST_TOKENS)
    return max(unit, tokens // num_seqs // unit * unit)


def cut_length(signature: Signature, num_seqs: int, cut_tokens: int) -> int:
    """Tokens of each of `num_seqs` sequences that leave room for one of `cut_tokens`, as far as
    the host can tell: packed, it knows their sum alone."""
    unit = signature.chunk_size if signature.lengths == "chunk_aligned" else 1
    each = -(-cut_tokens // num_seqs) if signature.is_cont_batched else cut_tokens
    return -(-each // unit) * unit
