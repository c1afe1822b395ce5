"""Per-token decay terms of the chunks of every span.

With a_t = exp(dt_t A) the recurrence S_t = a_t S_{t-1} + dt_t x_t B_t^T unrolls inside a chunk to
sums weighted by exp2(cum_l - cum_m) dt_m, cum being the running sum of log2 a_t (Dao and Gu 2024,
state-space duality). Two planes hold what the scan needs of it, in float32:

    cum    log2 of the decay from the chunk's start through token t
    u      cum - log2 dt, so that exp2(cum_l - u_m) is token m's weight in output l, and
           exp2(total - u_m), total being the chunk's last cum, its weight in the state after it

Each plane is (nheads, rows, CHUNK); row numbers are those of `spans` with BLOCK = CHUNK.
"""

import triton
import triton.language as tl

from ssd_aot.kernels.overlap import let_next_start
from ssd_aot.kernels.spans import find_span, span_begin

LOG2E = tl.constexpr(1.4426950408889634)

# A decay of 2**-200 leaves less than 2**-72 of the largest float32. Holding log2 a_t above it keeps
# the running sums small enough that their differences stay exact to 2**-10 whatever |A| dt is, and
# a token that starts another sequence is simply a token that nothing survives.
DEAD = tl.constexpr(-200.0)


@triton.jit
def softplus(v):
    """log(1 + exp(v)), exact in relative terms also where exp(v) is far below float32's epsilon."""
    e = tl.exp(-tl.abs(v))
    series = e * (1.0 - e * (0.5 - e * (0.3333333333 - e * 0.25)))
    return tl.maximum(v, 0.0) + tl.where(e < 0.015625, series, tl.log(1.0 + e))


@triton.jit
def time_step(
    raw,
    bias,
    dt_min,
    dt_max,
    inside,
    DT_SOFTPLUS: tl.constexpr,
):
    """dt after bias, softplus and limits; 0 for tokens outside the span."""
    v = raw.to(tl.float32) + bias
    if DT_SOFTPLUS:
        v = softplus(v)
    v = tl.minimum(tl.maximum(v, dt_min), dt_max)
    return tl.where(inside, v, 0.0)


@triton.jit
def log2_decay(dt, A, starts):
    """log2 a_t, with `starts` marking tokens that nothing of the past survives."""
    return tl.where(starts, DEAD, tl.maximum(dt * (A * LOG2E), DEAD))


@triton.jit
def sequence_starts(seq_idx, positions, seq_idx_token, inside, HAS_SEQ_IDX: tl.constexpr):
    """Tokens whose sequence index differs from the previous token's (0 before the first)."""
    if HAS_SEQ_IDX:
        own = tl.load(seq_idx + positions * seq_idx_token, mask=inside, other=0)
        previous = tl.load(
            seq_idx + (positions - 1) * seq_idx_token, mask=inside & (positions > 0), other=0
        )
        return inside & (own != previous)
    else:
        return positions < 0


@triton.jit
def decay(
    dt,
    A,
    dt_bias,
    seq_idx,
    spans,
    decay_terms,
    num_spans,
    span_tokens,
    rows,
    nheads,
    dt_min,
    dt_max,
    spans_stride,
    dt_batch,
    dt_token,
    dt_head,
    seq_idx_batch,
    seq_idx_token,
    PACKED: tl.constexpr,
    HAS_DT_BIAS: tl.constexpr,
    DT_SOFTPLUS: tl.constexpr,
    HAS_SEQ_IDX: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_H: tl.constexpr,
    PDL: tl.constexpr,
):
    """Grid (rows, cdiv(nheads, BLOCK_H)): one chunk of BLOCK_H heads a program.

    dt is read along heads, where it is contiguous, and the planes are written along tokens.
    """
    if PDL:
        let_next_start()
    row = tl.program_id(0)
    span = find_span(spans, row, num_spans, spans_stride, span_tokens, PACKED, CHUNK)
    span_start = span_begin(spans, span, spans_stride, span_tokens, PACKED)
    span_end = span_begin(spans, span + 1, spans_stride, span_tokens, PACKED)
    begin = span_start + (row - (span_start // CHUNK + span)) * CHUNK
    if begin >= span_end:
        return
    if PACKED:
        position = begin
    else:
        position = begin - span_start
        dt += span.to(tl.int64) * dt_batch
        if HAS_SEQ_IDX:
            seq_idx += span.to(tl.int64) * seq_idx_batch

    head = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    token = tl.arange(0, CHUNK)
    real_head = head < nheads
    inside = token < span_end - begin
    mask = inside[:, None] & real_head[None, :]
    offset = (position + token).to(tl.int64)[:, None] * dt_token + head.to(tl.int64)[
        None, :
    ] * dt_head
    raw = tl.load(dt + offset, mask=mask, other=0.0)
    if HAS_DT_BIAS:
        bias = tl.load(dt_bias + head, mask=real_head, other=0.0).to(tl.float32)[None, :]
    else:
        bias = 0.0
    step = time_step(raw, bias, dt_min, dt_max, mask, DT_SOFTPLUS)
    starts = sequence_starts(
        seq_idx, (position + token).to(tl.int64), seq_idx_token, inside, HAS_SEQ_IDX
    )
    rate = tl.load(A + head, mask=real_head, other=0.0).to(tl.float32)[None, :]
    log2_a = log2_decay(step, rate, starts[:, None])
    cum = tl.cumsum(log2_a, 0)
    u = cum - tl.log2(step)
    plane = nheads.to(tl.int64) * rows * CHUNK
    place = decay_terms + (head.to(tl.int64)[None, :] * rows + row) * CHUNK + token[:, None]
    every = real_head[None, :] & (token >= 0)[:, None]
    tl.store(place, cum, mask=every)
    tl.store(place + plane, u, mask=every)
