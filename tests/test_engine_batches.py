"""Batches that stand for all batches: every class of what a kernel may be passed is among them."""

from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from signature_builders import signature

from ssd_aot.engines.chunked_batches import (
    PackedBatch,
    most_tokens,
    of_each_class,
    packed_batches,
    row_batches,
)
from ssd_aot.signatures import Signature

ODD_ROWS = signature(nheads=4, ngroups=1, num_seqs=(1, 64), max_num_batched_tokens=2048)
"""A row of the projection has 772 elements: 4 tokens have a multiple of 16 of them."""


def classes(s: Signature, batch: PackedBatch) -> tuple[str, ...]:
    row = 2 * s.nheads * s.headdim + 2 * s.ngroups * s.dstate + s.nheads
    numbers = (batch.num_seqs, batch.tokens, batch.chunks, batch.pieces, batch.tokens * row)
    return tuple("1" if n == 1 else "16" if n % 16 == 0 else "other" for n in numbers)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(lengths=st.lists(st.integers(1, 600), min_size=1, max_size=64), data=st.data())
def test_a_batch_of_any_lengths_has_the_classes_of_one_that_is_planned(
    lengths: list[int], data: st.DataObject
) -> None:
    s, size = ODD_ROWS, ODD_ROWS.chunk_size
    while sum(lengths) > s.max_num_batched_tokens:
        lengths = lengths[1:]
    ends = list(accumulate(lengths))
    chunks = -(-ends[-1] // size)
    cut = sum(end % size > 0 for end in ends[:-1])
    served = PackedBatch(ends[-1], size, len(lengths), chunks + cut)
    assert classes(s, served) in {classes(s, planned) for planned in packed_batches(s)}


@pytest.mark.parametrize(
    "s",
    [
        ODD_ROWS,
        signature(num_seqs=(1, 1)),
        signature(num_seqs=(2, 1024), chunk_size=256),
        signature(num_seqs=(2, 64), lengths="chunk_aligned"),
    ],
    ids=lambda s: s.id,
)
def test_every_planned_batch_can_be_served(s: Signature) -> None:
    for batch in packed_batches(s):
        ends = batch.ends
        assert s.num_seqs[0] <= len(ends) - 1 == batch.num_seqs <= s.num_seqs[1]
        assert ends[0] == 0 and list(ends) == sorted(set(ends))
        assert ends[-1] == batch.tokens <= most_tokens(s)
        cut = sum(end % s.chunk_size > 0 for end in ends[1:-1])
        assert batch.pieces == batch.chunks + cut


def test_chunk_aligned_lengths_are_never_anything_else() -> None:
    """C07."""
    s = signature(num_seqs=(2, 64), lengths="chunk_aligned")
    assert all(end % s.chunk_size == 0 for batch in packed_batches(s) for end in batch.ends)
    assert all(batch.tokens % s.chunk_size == 0 for batch in row_batches(s))


@pytest.mark.parametrize(
    "low, high, wanted",
    [
        (1, 64, (1, 2, 16, 63, 64)),
        (2, 15, (2, 15)),
        (1, 1, (1,)),
        (16, 17, (16, 17)),
        (32, 32, (32,)),
        (3, 2, ()),
    ],
)
def test_the_least_and_the_greatest_of_each_class(
    low: int, high: int, wanted: tuple[int, ...]
) -> None:
    assert of_each_class(low, high) == wanted


def test_counts_whose_products_leave_32_bits_are_planned_on_both_sides() -> None:
    """Whatever budget the spec names: a server may be given a larger one."""
    s = signature(num_seqs=(1, 1))
    a_chunk = s.nheads * s.headdim * s.dstate
    wide = {batch.chunks * a_chunk >= 2**31 for batch in packed_batches(s)}
    assert wide == {False, True}
