"""The batches of engines that cut their chunks out of the whole batch as out of one row.

SGLang and TensorRT-LLM chunk a packed batch from its first token on, whatever sequences end where,
and cut a chunk into pieces where one does. Kernels are passed the numbers of tokens, chunks and
pieces, and strides that are products of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from ssd_aot.signatures import Signature


@dataclass(frozen=True)
class Batch:
    """`tokens` in a row that is chunked by itself."""

    tokens: int
    chunk_size: int

    @property
    def chunks(self) -> int:
        return -(-self.tokens // self.chunk_size)

    @property
    def counts(self) -> tuple[int, ...]:
        """What kernels may be passed."""
        return self.tokens, self.chunks


@dataclass(frozen=True)
class PackedBatch(Batch):
    """One row of `num_seqs` sequences; `pieces` are its chunks, cut where a sequence ends."""

    num_seqs: int
    pieces: int

    @property
    def counts(self) -> tuple[int, ...]:
        return *super().counts, self.num_seqs, self.pieces

    @property
    def ends(self) -> tuple[int, ...]:
        """The tokens after which sequences end, with a leading 0, so that the pieces come about."""
        cut, size = self.pieces - self.chunks, self.chunk_size
        whole = [size * (i + 1) for i in range(self.num_seqs - 1 - cut)]
        within = [i + i // (size - 1) + 1 for i in range(cut)]
        return (0, *sorted(whole + within), self.tokens)


@dataclass(frozen=True)
class RowBatch(Batch):
    """`rows` sequences of `tokens` each."""

    rows: int

    @property
    def counts(self) -> tuple[int, ...]:
        return *super().counts, self.rows


AnyBatch = TypeVar("AnyBatch", bound=Batch)


def packed_batches(signature: Signature) -> Iterator[PackedBatch]:
    """Every reachable combination of the classes of the counts, each once or twice."""
    return _thinned(signature, _packed(signature))


def row_batches(signature: Signature) -> Iterator[RowBatch]:
    """As `packed_batches`, for calls with one sequence a row."""
    return _thinned(signature, _rows(signature))


def _packed(signature: Signature) -> Iterator[PackedBatch]:
    size, least = signature.chunk_size, _fewest_tokens(signature)
    most = max(signature.max_num_batched_tokens, signature.num_seqs[0] * least)
    wide = _wide_from(signature)
    for num_seqs in of_each_class(*signature.num_seqs):
        if num_seqs * least > most:
            continue
        for chunks in of_each_class(-(-num_seqs * least // size), -(-most // size), wide.chunks):
            if least == size:
                if chunks * size <= most:
                    yield PackedBatch(chunks * size, size, num_seqs, chunks)
                continue
            low = max(num_seqs, (chunks - 1) * size + 1)
            for tokens in of_each_class(low, min(chunks * size, most), wide.tokens):
                # Ends of sequences on the ends of chunks add no piece; all others add one each.
                on_ends = min(num_seqs, chunks) - 1
                fewest = chunks + num_seqs - 1 - on_ends
                for pieces in of_each_class(fewest, min(chunks + num_seqs - 1, tokens)):
                    yield PackedBatch(tokens, size, num_seqs, pieces)


def _rows(signature: Signature) -> Iterator[RowBatch]:
    size, least = signature.chunk_size, _fewest_tokens(signature)
    wide = _wide_from(signature)
    for rows in of_each_class(*signature.num_seqs):
        longest = max(signature.max_num_batched_tokens // rows, least)
        for chunks in of_each_class(1, -(-longest // size), wide.chunks):
            if least == size:
                if chunks * size <= longest:
                    yield RowBatch(chunks * size, size, rows)
                continue
            low, high = (chunks - 1) * size + 1, min(chunks * size, longest)
            for tokens in of_each_class(low, high, wide.tokens):
                yield RowBatch(tokens, size, rows)


def _fewest_tokens(signature: Signature) -> int:
    return signature.chunk_size if signature.lengths == "chunk_aligned" else 1


@dataclass(frozen=True)
class _WideFrom:
    """The counts from which on a stride that is a product of them takes 64 bits."""

    chunks: tuple[int, ...]
    tokens: tuple[int, ...]


def _wide_from(s: Signature) -> _WideFrom:
    inner, state, square = s.nheads * s.headdim, s.ngroups * s.dstate, s.chunk_size**2
    convolved = inner + 2 * state
    a_chunk = (inner * s.dstate, s.ngroups * square, s.nheads * s.chunk_size)
    a_token = (convolved + inner + s.nheads, convolved, inner, state)
    return _WideFrom(
        chunks=tuple(-(-(2**31) // unit) for unit in a_chunk),
        tokens=tuple(-(-(2**31) // unit) for unit in a_token),
    )


def _thinned(signature: Signature, batches: Iterable[AnyBatch]) -> Iterator[AnyBatch]:
    """The first and the last batch of those with equal classes of all counts."""
    wide = _wide_from(signature)
    kept: dict[tuple[object, ...], list[AnyBatch]] = {}
    for batch in batches:
        classes = tuple("==1" if n == 1 else n % 16 == 0 for n in batch.counts)
        many_chunks = tuple(batch.chunks >= limit for limit in wide.chunks)
        many_tokens = tuple(batch.tokens >= limit for limit in wide.tokens)
        kept.setdefault((classes, many_chunks, many_tokens), [batch])[1:] = [batch]
    for same in kept.values():
        yield from dict.fromkeys(same)


def of_each_class(low: int, high: int, breaks: tuple[int, ...] = ()) -> tuple[int, ...]:
    """The least and the greatest number in the range of each of Triton's classes of integers: 1,
    multiples of 16, and others; of each part of the range where `breaks` lie in it."""
    edges = [low, *sorted(edge for edge in set(breaks) if low < edge <= high), high + 1]
    found: set[int] = set()
    for first, end in pairwise(edges):
        last = end - 1
        found.update({1, -(-first // 16) * 16, last // 16 * 16} & set(range(first, end)))
        first = max(first, 2)
        others = (first if first % 16 else first + 1, last if last % 16 else last - 1)
        found.update(value for value in others if first <= value <= last)
    return tuple(sorted(found))
