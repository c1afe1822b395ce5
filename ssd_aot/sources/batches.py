"""The batches a signature can reach in serving, thinned to those that can differ in a launch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ssd_aot.signatures import Signature


@dataclass(frozen=True)
class Batch:
    """Sequences of these lengths, behind `decode_tokens` tokens of running requests that share
    the rows of the projection and the convolution."""

    lengths: tuple[int, ...]
    decode_tokens: int = 0


def batches(signature: Signature) -> Iterator[Batch]:
    """Batches over the ends of the ranges: fewest and most sequences, shortest and longest tokens,
    behind none, an odd and an even number of decode tokens.

    A chunk-aligned signature has lengths that are multiples of its chunk size.
    """
    unit = signature.chunk_size if signature.lengths == "chunk_aligned" else 1
    low, high = signature.num_seqs
    for num_seqs in sorted({low, min(low + 1, high), high}):
        longest = max(unit, signature.max_num_batched_tokens // num_seqs // unit * unit)
        for length in sorted({unit, min(signature.chunk_size, longest), longest}):
            for decode_tokens in (0, 1, 2):
                yield Batch((length,) * num_seqs, decode_tokens)
