"""The batches of engines that cut their chunks out of the whole batch as out of one row.

SGLang and TensorRT-LLM chunk a packed batch from its first token on, whatever sequences end where,
and cut a chunk into pieces where one does. Kernels are passed the numbers of tokens, chunks and
pieces, and strides that are products of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ssd_aot.signatures import Signature


@dataclass(frozen=True)
class PackedBatch:
    """`tokens` of `num_seqs` sequences; `pieces` are the chunks, cut where a sequence ends."""

    num_seqs: int
    tokens: int
    pieces: int
    chunk_size: int

    @property
    def chunks(self) -> int:
        return -(-self.tokens // self.chunk_size)

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens after which sequences end, with a leading 0, so that the pieces come about."""
        cut, size = self.pieces - self.chunks, self.chunk_size
        whole = [size * (i + 1) for i in range(self.num_seqs - 1 - cut)]
        within = [i + i // (size - 1) + 1 for i in range(cut)]
        return (0, *sorted(whole + within), self.tokens)


@dataclass(frozen=True)
class RowBatch:
    """`rows` sequences of `tokens` each, every row chunked by itself."""

    rows: int
    tokens: int


def packed_batches(signature: Signature) -> Iterator[PackedBatch]:
    """Every reachable combination of the classes of the counts, each once or more."""
    size = signature.chunk_size
    aligned = signature.lengths == "chunk_aligned"
    least = size if aligned else 1
    most = max(signature.max_num_batched_tokens, signature.num_seqs[0] * least)
    for num_seqs in of_each_class(*signature.num_seqs):
        if num_seqs * least > most:
            continue
        for chunks in of_each_class(-(-num_seqs * least // size), most // size + (most % size > 0)):
            if aligned:
                if chunks * size <= most:
                    yield PackedBatch(num_seqs, chunks * size, chunks, size)
                continue
            low = max(num_seqs, (chunks - 1) * size + 1)
            for tokens in of_each_class(low, min(chunks * size, most)):
                # Ends of sequences on the ends of chunks add no piece; all others add one each.
                on_ends = min(num_seqs, chunks) - 1
                fewest = chunks + num_seqs - 1 - on_ends
                for pieces in of_each_class(fewest, min(chunks + num_seqs - 1, tokens)):
                    yield PackedBatch(num_seqs, tokens, pieces, size)


def row_batches(signature: Signature) -> Iterator[RowBatch]:
    """As `packed_batches`, for calls with one sequence a row."""
    size = signature.chunk_size
    aligned = signature.lengths == "chunk_aligned"
    for rows in of_each_class(*signature.num_seqs):
        longest = max(signature.max_num_batched_tokens // rows, size if aligned else 1)
        for chunks in of_each_class(1, -(-longest // size)):
            if aligned:
                if chunks * size <= longest:
                    yield RowBatch(rows, chunks * size)
                continue
            for tokens in of_each_class((chunks - 1) * size + 1, min(chunks * size, longest)):
                yield RowBatch(rows, tokens)


def of_each_class(low: int, high: int) -> tuple[int, ...]:
    """The least and the greatest number in the range of each of Triton's classes of integers: 1,
    multiples of 16, and others. What lies between them has their classes, and products of them
    that leave 32 bits are reached by the greatest of each."""
    found = {1} if low <= 1 <= high else set()
    first, last = max(low, 2), high
    if first <= last:
        multiples = (-(-first // 16) * 16, last // 16 * 16)
        found.update(value for value in multiples if first <= value <= last)
        found.add(first if first % 16 else first + 1)
        found.add(last if last % 16 else last - 1)
    return tuple(sorted(value for value in found if low <= value <= high))
