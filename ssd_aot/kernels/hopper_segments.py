"""`segments.segment_states` for Hopper, written in Gluon as `hopper_scan` is.

The decay terms of all chunks of a segment are worked out at once, the weights of its tokens run to
the segment's end, so that the state is one sum over chunks on the tensor cores, and chunks are
copied several ahead.

For aligned bf16 and fp16 layouts, state dims of 64 and 128, and segments of a fixed length.
"""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ssd_aot.kernels.decay import log2_decay, sequence_starts, time_step
from ssd_aot.kernels.hopper_copies import copy_rows, reinterpret, saturated
from ssd_aot.kernels.overlap import let_next_start
from ssd_aot.kernels.spans import block_extent


@gluon.jit
def _sum(a, b):
    return a + b


@gluon.jit
def copy_chunk(
    x_tile,
    B_tile,
    x,
    B,
    position,
    end,
    columns,
    x_token,
    B_token,
    DSTATE: gl.constexpr,
    P_MASKED: gl.constexpr,
    CHUNK: gl.constexpr,
    BLOCK_P: gl.constexpr,
):
    """Ask for the chunk at `position`, of which nothing is left from `end` on. An empty group is
    committed as well, so that as many follow each chunk's."""
    if position + CHUNK <= end:
        copy_rows(B_tile, B, position, end, B_token, DSTATE, False, False, CHUNK, DSTATE)
        copy_rows(x_tile, x, position, end, x_token, columns, False, P_MASKED, CHUNK, BLOCK_P)
    elif position < end:
        copy_rows(B_tile, B, position, end, B_token, DSTATE, True, False, CHUNK, DSTATE)
        copy_rows(x_tile, x, position, end, x_token, columns, True, P_MASKED, CHUNK, BLOCK_P)
    async_copy.commit_group()


@gluon.jit
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
    HEADDIM: gl.constexpr,
    DSTATE: gl.constexpr,
    PACKED: gl.constexpr,
    HAS_DT_BIAS: gl.constexpr,
    DT_SOFTPLUS: gl.constexpr,
    HAS_SEQ_IDX: gl.constexpr,
    CHUNK: gl.constexpr,
    SEGMENT: gl.constexpr,
    PRECISION: gl.constexpr,
    BLOCK_P: gl.constexpr,
    BUFFERS: gl.constexpr,
    BY_HAND: gl.constexpr,
    PDL: gl.constexpr,
):
    """Grid and arguments of `segments.segment_states`, SEGMENT not 0; BUFFERS chunks, two or more,
    are in flight or in use. Tokens behind the end have a time step of 0, and so a weight of 0."""
    if PDL:
        let_next_start()
    PARTS: gl.constexpr = (HEADDIM + BLOCK_P - 1) // BLOCK_P
    P_MASKED: gl.constexpr = HEADDIM % BLOCK_P != 0
    CHUNKS: gl.constexpr = SEGMENT // CHUNK
    element: gl.constexpr = x.dtype.element_ty
    state_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DSTATE, 16])
    state_operand: gl.constexpr = gl.DotOperandLayout(0, state_layout, 2)
    # A warp holds whole chunks, so that running sums along them stay inside it.
    terms_layout: gl.constexpr = gl.BlockedLayout([1, CHUNK // 32], [1, 32], [4, 1], [1, 0])
    n_tile: gl.constexpr = gl.NVMMASharedLayout.get_default_for([CHUNK, DSTATE], element)
    p_tile: gl.constexpr = gl.NVMMASharedLayout.get_default_for([CHUNK, BLOCK_P], element)

    block = gl.program_id(1)
    span, span_start, begin, end, row = block_extent(
        spans, block, num_spans, spans_stride, span_tokens, PACKED, CHUNK, SEGMENT
    )
    if begin >= end:
        return
    head = gl.program_id(0) // PARTS
    first_p = gl.program_id(0) % PARTS * BLOCK_P
    columns = HEADDIM - first_p
    wide_head = head.to(gl.int64)
    x += wide_head * x_head + first_p
    dt += wide_head * dt_head
    B += (head // heads_per_group).to(gl.int64) * B_group
    if not PACKED:
        batch = span.to(gl.int64)
        x += batch * x_batch
        dt += batch * dt_batch
        B += batch * B_batch
        if HAS_SEQ_IDX:
            seq_idx += batch * seq_idx_batch
        begin -= span_start
        end -= span_start

    x_tiles = gl.allocate_shared_memory(element, [BUFFERS, CHUNK, BLOCK_P], p_tile)
    B_tiles = gl.allocate_shared_memory(element, [BUFFERS, CHUNK, DSTATE], n_tile)
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    w_rows = gl.allocate_shared_memory(gl.float32, [CHUNKS, CHUNK], flat)
    totals_row = gl.allocate_shared_memory(gl.float32, [CHUNKS], flat)
    for early in gl.static_range(BUFFERS - 1):
        copy_chunk(
            x_tiles.index(early), B_tiles.index(early), x, B, begin + early * CHUNK, end, columns,
            x_token, B_token, DSTATE, P_MASKED, CHUNK, BLOCK_P,
        )  # fmt: skip

    chunk = gl.arange(0, CHUNKS, layout=gl.SliceLayout(1, terms_layout))
    token = gl.arange(0, CHUNK, layout=gl.SliceLayout(0, terms_layout))
    place = chunk[:, None] * CHUNK + token[None, :]
    inside = place < end - begin
    position = begin.to(gl.int64) + place
    raw = gl.load(dt + position * dt_token, mask=inside, other=0.0)
    rate = gl.load(A + head).to(gl.float32)
    bias = 0.0
    if HAS_DT_BIAS:
        bias = gl.load(dt_bias + head).to(gl.float32)
    step = time_step(raw, bias, dt_min, dt_max, inside, DT_SOFTPLUS)
    starts = sequence_starts(seq_idx, position, seq_idx_token, inside, HAS_SEQ_IDX)
    log2_a = log2_decay(step, rate, starts)
    cum = gl.associative_scan(log2_a, 1, _sum)
    u = cum - gl.log2(step)
    total = gl.sum(log2_a, 1)
    if first_p == 0:
        # The rows behind the span's last chunk are those of the next span.
        real = (chunk * CHUNK < end - begin)[:, None] & (token >= 0)[None, :]
        terms = decay_terms + (wide_head * rows + row) * CHUNK + place
        gl.store(terms, cum, mask=real)
        gl.store(terms + nheads.to(gl.int64) * rows * CHUNK, u, mask=real)
        gl.store(segment_decay + block.to(gl.int64) * nheads + head, gl.sum(total, 0))
    # What a chunk's end still loses until the segment's end.
    totals_row.store(total)
    later = gl.arange(0, CHUNKS, layout=gl.SliceLayout(0, terms_layout))
    totals = totals_row.load(gl.SliceLayout(0, terms_layout))
    behind = gl.sum(gl.where(later[None, :] > chunk[:, None], totals[None, :], 0.0), 1)
    w = gl.exp2((total[:, None] - u) + behind[:, None])
    # Stored as one tile of all chunks; read a row at a time, which only a flat layout can index.
    reinterpret(
        w_rows, gl.float32, [CHUNKS, CHUNK], gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
    ).store(w)

    state = gl.zeros([BLOCK_P, DSTATE], gl.float32, layout=state_layout)
    for number in range(gl.cdiv(end - begin, CHUNK)):
        async_copy.wait_group(BUFFERS - 2)
        fence_async_shared()
        stage = number % BUFFERS
        weights = w_rows.index(number).load(gl.SliceLayout(0, state_operand))[None, :]
        x_rows = x_tiles.index(stage).permute((1, 0)).load(state_operand)
        weighted = saturated(x_rows.to(gl.float32) * weights, element)
        state = warpgroup_mma(weighted, B_tiles.index(stage), state, is_async=True)
        ahead = number + BUFFERS - 1
        copy_chunk(
            x_tiles.index(ahead % BUFFERS), B_tiles.index(ahead % BUFFERS), x, B,
            begin + ahead * CHUNK, end, columns, x_token, B_token, DSTATE, P_MASKED, CHUNK, BLOCK_P,
        )  # fmt: skip
        state, weighted = warpgroup_mma_wait(0, deps=[state, weighted])
    p = gl.arange(0, BLOCK_P, layout=gl.SliceLayout(1, state_layout))
    n = gl.arange(0, DSTATE, layout=gl.SliceLayout(0, state_layout))
    local = states + (block.to(gl.int64) * nheads + head) * (HEADDIM * DSTATE)
    places = local + ((first_p + p)[:, None] * DSTATE + n[None, :])
    if P_MASKED:
        gl.store(places, state, mask=(p < columns)[:, None] & (n >= 0)[None, :])
    else:
        gl.store(places, state)
