"""Where a sequence's tokens and chunks lie, worked out on the device.

A span is a run of tokens with one initial state: a sequence, or one of the caller's chunks when
intermediate states are wanted. Spans are packed (`spans` holds their offsets) or equally long.
Cut into blocks of `BLOCK` tokens, span s owns the block numbers from begin(s) // BLOCK + s on:
that is injective for any lengths, empty spans too, so a flat grid and a flat workspace need no
counts from the device.
"""

import triton
import triton.language as tl


@triton.jit
def span_begin(spans, span, spans_stride, span_tokens, PACKED: tl.constexpr):
    """First token of a span in the packed order."""
    if PACKED:
        return tl.load(spans + span * spans_stride)
    else:
        return span * span_tokens


@triton.jit
def find_span(
    spans,
    block,
    num_spans,
    spans_stride,
    span_tokens,
    PACKED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The last span whose first block number is not above `block`, by binary search."""
    low = block * 0
    high = num_spans
    while high - low > 1:
        middle = (low + high) // 2
        begin = span_begin(spans, middle, spans_stride, span_tokens, PACKED)
        not_above = begin // BLOCK + middle <= block
        low = tl.where(not_above, middle, low)
        high = tl.where(not_above, high, middle)
    return low


@triton.jit
def block_extent(
    spans,
    block,
    num_spans,
    spans_stride,
    span_tokens,
    PACKED: tl.constexpr,
    CHUNK: tl.constexpr,
    SEGMENT: tl.constexpr,
):
    """(span, its first token, first token, end, first row) of a program's tokens, both counted in
    the packed order: a whole span, or segment number `block` when SEGMENT is not 0, which is empty
    where no span has so many."""
    if SEGMENT > 0:
        span = find_span(spans, block, num_spans, spans_stride, span_tokens, PACKED, SEGMENT)
    else:
        span = block
    start = span_begin(spans, span, spans_stride, span_tokens, PACKED)
    begin = start
    end = span_begin(spans, span + 1, spans_stride, span_tokens, PACKED)
    row = start // CHUNK + span
    if SEGMENT > 0:
        segment = block - (start // SEGMENT + span)
        begin += segment * SEGMENT
        row += segment * (SEGMENT // CHUNK)
        end = tl.minimum(end, begin + SEGMENT)
    return span, start, begin, end, row
