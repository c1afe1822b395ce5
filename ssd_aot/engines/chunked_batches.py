"""The batches of engines that cut their chunks out of the whole batch as out of one row.

SGLang and TensorRT-LLM chunk a packed batch from its first token on, whatever sequences end where,
and cut a chunk into pieces where one does. Kernels are passed the numbers of tokens, chunks and
pieces, and strides that are products of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeVar

from ssd_aot.signatures import Signature
from ssd_aot.sources.batches import MOST_TOKENS


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

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(end - start for start, end in pairwise(self.ends))


@dataclass(frozen=True)
class RowBatch(Batch):
    """`rows` sequences of `tokens` each."""

    rows: int

    @property
    def counts(self) -> tuple[int, ...]:
        return *super().counts, self.rows

    @property
    def lengths(self) -> tuple[int, ...]:
        return (self.tokens,) * self.rows


def pieces_of(lengths: Sequence[int], chunk_size: int) -> tuple[tuple[int, int], ...]:
    """The pieces of the chunks of one row, cut where a sequence begins: the chunk of each, and the
    token of that chunk at which it begins."""
    *starts, tokens = accumulate(lengths, initial=0)
    begins = sorted({*starts, *range(0, tokens, chunk_size)})
    return tuple(divmod(token, chunk_size) for token in begins)


AnyBatch = TypeVar("AnyBatch", bound=Batch)


def packed_batches(signature: Signature) -> Iterator[PackedBatch]:
    """Every reachable combination of the classes of the counts, each once or twice."""
    return _thinned(signature, _packed(signature))


def row_batches(signature: Signature) -> Iterator[RowBatch]:
    """As `packed_batches`, for calls with one sequence a row."""
    return _thinned(signature, _rows(signature))


def most_tokens(signature: Signature) -> int:
    """Tokens of the largest batch. The spec's token budget is no bound: from some count on strides
    take 64 bits, and a server may be given a larger budget."""
    return max(signature.max_num_batched_tokens, MOST_TOKENS)


def _packed(signature: Signature) -> Iterator[PackedBatch]:
    size, least = signature.chunk_size, _fewest_tokens(signature)
    most = max(most_tokens(signature), signature.num_seqs[0] * least)
    for num_seqs in of_each_class(*signature.num_seqs):
        if num_seqs * least > most:
            continue
        for chunks, tokens in _lengths(signature, max(num_seqs * least, least), most):
            # Ends of sequences on the ends of chunks add no piece; all others add one each.
            on_ends = min(num_seqs, chunks) - 1
            fewest = chunks + num_seqs - 1 - on_ends
            pieces = of_each_class(fewest, min(chunks + num_seqs - 1, tokens))
            for count in pieces if least == 1 else (chunks,):
                yield PackedBatch(tokens, size, num_seqs, count)


def _rows(signature: Signature) -> Iterator[RowBatch]:
    least = _fewest_tokens(signature)
    for rows in of_each_class(*signature.num_seqs):
        longest = max(most_tokens(signature) // rows, least)
        for _, tokens in _lengths(signature, least, longest):
            yield RowBatch(tokens, signature.chunk_size, rows)


def _lengths(signature: Signature, low: int, high: int) -> Iterator[tuple[int, int]]:
    """Numbers of chunks, and of tokens in that many."""
    size, units = signature.chunk_size, _units(signature)
    for chunks in of_each_class(-(-low // size), -(-high // size), _wide_from(units.a_chunk)):
        if _fewest_tokens(signature) == size:
            if chunks * size <= high:
                yield chunks, chunks * size
            continue
        first, last = max(low, (chunks - 1) * size + 1), min(chunks * size, high)
        wide = _wide_from(units.a_token)
        # A stride that is tokens times a width may be a multiple of 16 where neither is.
        for tokens in of_each_class(first, last, wide, divisors=(1, 2, 4, 8, 16)):
            yield chunks, tokens


def _fewest_tokens(signature: Signature) -> int:
    return signature.chunk_size if signature.lengths == "chunk_aligned" else 1


@dataclass(frozen=True)
class _Units:
    """The elements that a chunk, and a token, have in the tensors of an operation: strides over a
    row are products of them and a count."""

    a_chunk: tuple[int, ...]
    a_token: tuple[int, ...]


def _units(s: Signature) -> _Units:
    inner, state = s.nheads * s.headdim, s.ngroups * s.dstate
    convolved = inner + 2 * state
    return _Units(
        a_chunk=(inner * s.dstate, s.ngroups * s.chunk_size**2, s.nheads * s.chunk_size),
        a_token=(inner + convolved + s.nheads, convolved, inner, state),
    )


def _wide_from(units: Iterable[int]) -> tuple[int, ...]:
    """The counts from which on a product takes 64 bits."""
    return tuple(-(-(2**31) // unit) for unit in units)


def _thinned(signature: Signature, batches: Iterable[AnyBatch]) -> Iterator[AnyBatch]:
    """The first and the last batch of those with equal classes of all counts and products."""
    units = _units(signature)
    kept: dict[tuple[str, ...], list[AnyBatch]] = {}
    for batch in batches:
        values = (
            *batch.counts,
            *(batch.chunks * unit for unit in units.a_chunk),
            *(batch.tokens * unit for unit in units.a_token),
        )
        kept.setdefault(tuple(map(_class, values)), [batch])[1:] = [batch]
    for same in kept.values():
        yield from dict.fromkeys(same)


def _class(value: int) -> str:
    width = "i32" if value < 2**31 else "i64"
    return f"{width} {'==1' if value == 1 else '%16' if value % 16 == 0 else 'other'}"


def of_each_class(
    low: int, high: int, breaks: tuple[int, ...] = (), *, divisors: tuple[int, ...] = (1, 16)
) -> tuple[int, ...]:
    """The least and the greatest number in the range of each of Triton's classes of integers: 1,
    multiples of 16, and others; of each part of the range where `breaks` lie in it.

    Other `divisors`, each a divisor of the next, tell more classes apart.
    """
    edges = [low, *sorted(edge for edge in set(breaks) if low < edge <= high), high + 1]
    found = {1} if low <= 1 <= high else set[int]()
    for first, end in pairwise(edges):
        for divisor, larger in pairwise((*divisors, 0)):
            least = -(-max(first, 2) // divisor) * divisor
            greatest = (end - 1) // divisor * divisor
            if larger and least % larger == 0:
                least += divisor
            if larger and greatest % larger == 0:
                greatest -= divisor
            found.update(value for value in (least, greatest) if max(first, 2) <= value < end)
    return tuple(sorted(found))
