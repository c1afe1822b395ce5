"""The segmented form: local states of segments, then the state before each segment.

Where sequences times heads are too few to fill the GPU, a sequence is cut into segments that run
side by side. `segment_states` computes each segment's state from zero and writes the decay terms
that the scan reads; `state_passing` walks the segments of each sequence, replaces every local state
by the state before its segment, and writes final states and, when asked, the state after each of
the caller's chunks.
"""

import triton
import triton.language as tl

from ssd_aot.kernels.decay import log2_decay, sequence_starts, time_step
from ssd_aot.kernels.overlap import let_next_start, wait_for_previous
from ssd_aot.kernels.spans import block_extent, span_begin
from ssd_aot.kernels.tiles import load_tile, store_state, update_state


@triton.jit
def segment_states(
    x,
    dt,
    A,
    B,
    dt_bias,
    seq_idx,
    spans,
    decay_terms,
    states,
    segment_decay,
    num_spans,
    span_tokens,
    rows,
    nheads,
    heads_per_group,
    dt_min,
    dt_max,
    spans_stride,
    x_batch,
    x_token,
    x_head,
    dt_batch,
    dt_token,
    dt_head,
    B_batch,
    B_token,
    B_group,
    seq_idx_batch,
    seq_idx_token,
    HEADDIM: tl.constexpr,
    DSTATE: tl.constexpr,
    PACKED: tl.constexpr,
    HAS_DT_BIAS: tl.constexpr,
    DT_SOFTPLUS: tl.constexpr,
    HAS_SEQ_IDX: tl.constexpr,
    CHUNK: tl.constexpr,
    SEGMENT: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STATE_NP: tl.constexpr,
    PDL: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Grid (nheads * cdiv(HEADDIM, BLOCK_P), segments); SEGMENT 0 takes each span as a segment."""
    if PDL:
        let_next_start()
    PARTS: tl.constexpr = (HEADDIM + BLOCK_P - 1) // BLOCK_P
    P_MASKED: tl.constexpr = HEADDIM % BLOCK_P != 0
    N_MASKED: tl.constexpr = DSTATE != BLOCK_N
    block = tl.program_id(1)
    span, span_start, begin, end, row = block_extent(
        spans, block, num_spans, spans_stride, span_tokens, PACKED, CHUNK, SEGMENT
    )
    if SEGMENT > 0:
        if begin >= end:
            return

    part = tl.program_id(0) % PARTS
    head = tl.program_id(0) // PARTS
    p = part * BLOCK_P + tl.arange(0, BLOCK_P)
    n = tl.arange(0, BLOCK_N)
    token = tl.arange(0, CHUNK)
    p_inside = p < HEADDIM
    n_inside = n < DSTATE
    wide_head = head.to(tl.int64)
    x += wide_head * x_head
    dt += wide_head * dt_head
    B += (head // heads_per_group).to(tl.int64) * B_group
    if not PACKED:
        batch = span.to(tl.int64)
        x += batch * x_batch
        dt += batch * dt_batch
        B += batch * B_batch
        if HAS_SEQ_IDX:
            seq_idx += batch * seq_idx_batch
        begin -= span_start
        end -= span_start
    rate = tl.load(A + head).to(tl.float32)
    bias = 0.0
    if HAS_DT_BIAS:
        bias = tl.load(dt_bias + head).to(tl.float32)

    plane = nheads.to(tl.int64) * rows * CHUNK
    terms = decay_terms + (wide_head * rows + row) * CHUNK
    state = tl.zeros((BLOCK_N, BLOCK_P) if STATE_NP else (BLOCK_P, BLOCK_N), tl.float32)
    log2_total = 0.0
    for position in tl.range(begin, end, CHUNK, num_stages=STAGES):
        inside = token < end - position
        start = tl.cast(position, tl.int64)
        B_tile = load_tile(
            B + start * B_token + (token[:, None] * B_token + n[None, :]),
            inside[:, None], n_inside[None, :], True, N_MASKED,
        )  # fmt: skip
        x_tile = load_tile(
            x + start * x_token + (token[:, None] * x_token + p[None, :]),
            inside[:, None], p_inside[None, :], True, P_MASKED,
        )  # fmt: skip
        raw = tl.load(dt + (start + token) * dt_token, mask=inside, other=0.0)
        step = time_step(raw, bias, dt_min, dt_max, inside, DT_SOFTPLUS)
        starts = sequence_starts(seq_idx, start + token, seq_idx_token, inside, HAS_SEQ_IDX)
        log2_a = log2_decay(step, rate, starts)
        cum = tl.cumsum(log2_a, 0)
        total = tl.sum(log2_a, 0)
        u = cum - tl.log2(step)
        w = tl.exp2(total - u)
        if part == 0:
            tl.store(terms + token, cum)
            tl.store(terms + plane + token, u)
        state = update_state(state, B_tile, x_tile, w, tl.exp2(total), STATE_NP, PRECISION)
        log2_total += total
        terms += CHUNK

    local = states + (block.to(tl.int64) * nheads + head) * (HEADDIM * DSTATE)
    store_state(local, state, p, n, DSTATE, p_inside, n_inside, P_MASKED or N_MASKED, STATE_NP)
    if part == 0:
        tl.store(segment_decay + block.to(tl.int64) * nheads + head, log2_total)


@triton.jit
def state_passing(
    states,
    segment_decay,
    initial_states,
    final_states,
    final_slots,
    chunk_states,
    sequences,
    last_chunks,
    sequence_tokens,
    nheads,
    sequences_stride,
    last_chunks_stride,
    has_final_slots,
    final_slots_stride,
    initial_slot,
    initial_head,
    initial_row,
    final_slot,
    final_head,
    final_row,
    HEADDIM: tl.constexpr,
    DSTATE: tl.constexpr,
    PACKED: tl.constexpr,
    HAS_INITSTATES: tl.constexpr,
    HAS_FINAL_STATES: tl.constexpr,
    HAS_CHUNK_STATES: tl.constexpr,
    SEGMENT: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Grid (cdiv(HEADDIM * DSTATE, BLOCK), nheads, sequences).

    `states` is (segments, nheads, HEADDIM, DSTATE) float32, rewritten in place. With
    HAS_CHUNK_STATES the segments are the caller's chunks, counted by `last_chunks`.
    """
    sequence = tl.program_id(2)
    head = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < HEADDIM * DSTATE
    p = place // DSTATE
    n = place % DSTATE
    if HAS_CHUNK_STATES:
        first = (
            tl.load(last_chunks + (sequence - 1) * last_chunks_stride, mask=sequence > 0, other=-1)
            + 1
        )
        count = tl.load(last_chunks + sequence * last_chunks_stride) + 1 - first
    else:
        start = span_begin(sequences, sequence, sequences_stride, sequence_tokens, PACKED)
        stop = span_begin(sequences, sequence + 1, sequences_stride, sequence_tokens, PACKED)
        first = start // SEGMENT + sequence
        count = (stop - start + SEGMENT - 1) // SEGMENT
    if HAS_INITSTATES:
        initial = initial_states + sequence.to(tl.int64) * initial_slot + head * initial_head
        state = tl.load(
            initial + p.to(tl.int64) * initial_row + n, mask=inside, other=0.0
        ).to(tl.float32)  # fmt: skip
    else:
        state = tl.zeros((BLOCK,), tl.float32)
    if PDL:
        let_next_start()
        wait_for_previous()
    for segment in tl.range(first, first + count, num_stages=STAGES):
        at = tl.cast(segment, tl.int64) * nheads + head
        slot = at * (HEADDIM * DSTATE) + place
        local = tl.load(states + slot, mask=inside, other=0.0)
        decay = tl.exp2(tl.load(segment_decay + at))
        tl.store(states + slot, state, mask=inside)
        state = state * decay + local
        if HAS_CHUNK_STATES:
            tl.store(chunk_states + slot, state.to(chunk_states.dtype.element_ty), mask=inside)
    if HAS_FINAL_STATES:
        target = tl.load(
            final_slots + sequence * final_slots_stride, mask=has_final_slots != 0, other=sequence
        ).to(tl.int64)
        final = final_states + target * final_slot + head * final_head
        tl.store(
            final + p.to(tl.int64) * final_row + n,
            state.to(final_states.dtype.element_ty),
            mask=inside,
        )
