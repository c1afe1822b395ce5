"""The walk of `scan` for Hopper: one head's columns through all chunks of a span.

The arguments and the grid are those of `scan.scan`; what happens in a chunk is in `hopper_chunk`.
For aligned bf16 and fp16 layouts without a gate, state dims of 64 and 128.
"""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.ampere import async_copy

from ssd_aot.kernels.hopper_chunk import allocate_tiles, chunk, copy_inputs, copy_terms
from ssd_aot.kernels.overlap import wait_for_previous
from ssd_aot.kernels.spans import block_extent


@gluon.jit
def scan(
    x,
    B,
    C,
    D,
    z,
    out,
    decay_terms,
    initial_states,
    final_states,
    final_slots,
    spans,
    num_spans,
    span_tokens,
    rows,
    nheads,
    heads_per_group,
    spans_stride,
    has_final_slots,
    final_slots_stride,
    x_batch,
    x_token,
    x_head,
    B_batch,
    B_token,
    B_group,
    C_batch,
    C_token,
    C_group,
    z_batch,
    z_token,
    z_head,
    out_batch,
    out_token,
    out_head,
    D_head_stride,
    initial_slot,
    initial_head,
    initial_row,
    final_slot,
    final_head,
    final_row,
    HEADDIM: gl.constexpr,
    DSTATE: gl.constexpr,
    PACKED: gl.constexpr,
    HAS_INITSTATES: gl.constexpr,
    HAS_FINAL_STATES: gl.constexpr,
    D_FORM: gl.constexpr,
    HAS_Z: gl.constexpr,
    CHUNK: gl.constexpr,
    SEGMENT: gl.constexpr,
    PRECISION: gl.constexpr,
    BLOCK_P: gl.constexpr,
    BY_HAND: gl.constexpr,
    PDL: gl.constexpr,
):
    """Grid and arguments of `scan.scan`; of z and PRECISION nothing is used.

    Chunks take turns with two sets of tiles, each set a name: where one is indexed, the compiler
    cannot tell the sets apart and synchronises what need not be.
    """
    gl.static_assert(not HAS_Z, "the gate is not part of this kernel")
    PARTS: gl.constexpr = (HEADDIM + BLOCK_P - 1) // BLOCK_P
    P_MASKED: gl.constexpr = HEADDIM % BLOCK_P != 0
    element: gl.constexpr = x.dtype.element_ty
    scores_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CHUNK, 16])
    y_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_P, 16])
    state_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DSTATE, 16])
    n_tile: gl.constexpr = gl.NVMMASharedLayout.get_default_for([CHUNK, DSTATE], element)
    p_tile: gl.constexpr = gl.NVMMASharedLayout.get_default_for([CHUNK, BLOCK_P], element)
    s_tile: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_P, DSTATE], element)

    block = gl.program_id(1)
    span, span_start, begin, end, row = block_extent(
        spans, block, num_spans, spans_stride, span_tokens, PACKED, CHUNK, SEGMENT
    )
    if SEGMENT > 0:
        if begin >= end:
            return
    head = gl.program_id(0) // PARTS
    first_p = gl.program_id(0) % PARTS * BLOCK_P
    columns = HEADDIM - first_p
    group = (head // heads_per_group).to(gl.int64)
    wide_head = head.to(gl.int64)
    x += wide_head * x_head + first_p
    B += group * B_group
    C += group * C_group
    out += wide_head * out_head + first_p
    if not PACKED:
        batch = span.to(gl.int64)
        x += batch * x_batch
        B += batch * B_batch
        C += batch * C_batch
        out += batch * out_batch
        begin -= span_start
        end -= span_start
    plane = nheads.to(gl.int64) * rows * CHUNK
    terms = decay_terms + (wide_head * rows + row) * CHUNK

    even = allocate_tiles(element, CHUNK, DSTATE, BLOCK_P, n_tile, p_tile)
    odd = allocate_tiles(element, CHUNK, DSTATE, BLOCK_P, n_tile, p_tile)
    state_tile = gl.allocate_shared_memory(element, [BLOCK_P, DSTATE], s_tile)
    out_tile = gl.allocate_shared_memory(out.dtype.element_ty, [CHUNK, BLOCK_P], p_tile)

    # x, B and C are the caller's: complete before the launch that this one waits for began.
    if begin < end:
        copy_inputs(
            even, x, B, C, begin, end, columns, x_token, B_token, C_token, DSTATE, P_MASKED, CHUNK,
            BLOCK_P,
        )  # fmt: skip
    if PDL:
        wait_for_previous()
    p = gl.arange(0, BLOCK_P, layout=gl.SliceLayout(1, state_layout))
    n = gl.arange(0, DSTATE, layout=gl.SliceLayout(0, state_layout))
    state_inside = (p < columns)[:, None] & (n >= 0)[None, :]
    total = 0.0
    if begin < end:
        copy_terms(even, terms, plane, CHUNK)
        total = gl.load(terms + (CHUNK - 1))
    async_copy.commit_group()
    if HAS_INITSTATES:
        initial = initial_states + block.to(gl.int64) * initial_slot + wide_head * initial_head
        places = initial + ((first_p + p).to(gl.int64)[:, None] * initial_row + n[None, :])
        if P_MASKED:
            state = gl.load(places, mask=state_inside, other=0.0).to(gl.float32)
        else:
            state = gl.load(places).to(gl.float32)
    else:
        state = gl.zeros([BLOCK_P, DSTATE], gl.float32, layout=state_layout)
    D_head = 0.0
    y_column = gl.arange(0, BLOCK_P, layout=gl.SliceLayout(0, y_layout))
    D_columns = y_column.to(gl.float32)
    if D_FORM == 1:
        D_head = gl.load(D + head * D_head_stride).to(gl.float32)
    if D_FORM == 2:
        D_columns = gl.load(
            D + head * D_head_stride + first_p + y_column, mask=y_column < columns, other=0.0
        ).to(gl.float32)

    position = begin
    while position < end:
        state, total = chunk(
            state, total, even, odd, state_tile, out_tile, x, B, C, out, terms, plane, position,
            end, columns, D_head, D_columns, x_token, B_token, C_token, out_token, DSTATE, D_FORM,
            P_MASKED, CHUNK, BLOCK_P, scores_layout, y_layout, state_layout,
        )  # fmt: skip
        position += CHUNK
        if position < end:
            state, total = chunk(
                state, total, odd, even, state_tile, out_tile, x, B, C, out, terms + CHUNK, plane,
                position, end, columns, D_head, D_columns, x_token, B_token, C_token, out_token,
                DSTATE, D_FORM, P_MASKED, CHUNK, BLOCK_P, scores_layout, y_layout, state_layout,
            )  # fmt: skip
        position += CHUNK
        terms += 2 * CHUNK

    if HAS_FINAL_STATES:
        slot = gl.load(
            final_slots + span * final_slots_stride, mask=has_final_slots != 0, other=span
        ).to(gl.int64)
        final = final_states + slot * final_slot + wide_head * final_head
        places = final + ((first_p + p).to(gl.int64)[:, None] * final_row + n[None, :])
        value = state.to(final_states.dtype.element_ty)
        if P_MASKED:
            gl.store(places, value, mask=state_inside)
        else:
            gl.store(places, value)
