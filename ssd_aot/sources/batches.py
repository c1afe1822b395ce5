"""The batches a signature can reach in serving, thinned to those that can differ in a launch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ssd_aot.signatures import Signature


@dataclass(frozen=True)
class Batch:
    """`num_seqs` sequences with `tokens` prefill tokens in all, behind `decode_tokens` tokens of
    running requests that share the projection's and the convolution's rows."""

    num_seqs: int
    tokens: int
    decode_tokens: int = 0


def batches(signature: Signature) -> Iterator[Batch]:
    """Batches over the ends of the ranges: fewest and most sequences, shortest and longest tokens,
    behind none, an odd and an even number of decode tokens.

    A chunk-aligned signature has lengths that are multiples of its chunk size.
    """
    unit = signature.chunk_size if signature.lengths == "chunk_aligned" else 1
    low, high = signature.num_seqs
    for num_seqs in sorted({low, min(low + 1, high), high}):
        fewest = num_seqs * unit
        most = max(fewest, signature.max_num_batched_tokens // unit * unit)
        for tokens in sorted({fewest, min(num_seqs * signature.chunk_size, most), most}):
            for decode_tokens in (0, 1, 2):
                yield Batch(num_seqs, tokens, decode_tokens)
