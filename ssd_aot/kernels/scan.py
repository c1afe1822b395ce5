"""The chunked scan with the state in registers: outputs and final states of whole spans.

A program walks the chunks of one span (a sequence, or a segment of one) for one head and one block
of its columns; what happens in a chunk is in `chunks`.
"""

import triton
import triton.language as tl

from ssd_aot.kernels.chunks import prefetch_rows, scan_chunk
from ssd_aot.kernels.overlap import wait_for_previous
from ssd_aot.kernels.spans import block_extent
from ssd_aot.kernels.tiles import load_state, store_state


@triton.jit
def walk_columns(
    first_column,
    x,
    B,
    C,
    D,
    z,
    out,
    initial,
    final,
    terms,
    plane,
    begin,
    end,
    x_token,
    B_token,
    C_token,
    z_token,
    out_token,
    initial_row,
    final_row,
    HEADDIM: tl.constexpr,
    DSTATE: tl.constexpr,
    HAS_INITSTATES: tl.constexpr,
    HAS_FINAL_STATES: tl.constexpr,
    D_FORM: tl.constexpr,
    HAS_Z: tl.constexpr,
    CHUNK: tl.constexpr,
    PRECISION: tl.constexpr,
    COLUMNS: tl.constexpr,
    P_MASKED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STATE_NP: tl.constexpr,
    PREFETCH: tl.constexpr,
    STAGES: tl.constexpr,
):
    """All chunks of tokens [begin, end) for COLUMNS columns of one head; the pointers are those of
    the head, `D` of its entry or row."""
    N_MASKED: tl.constexpr = DSTATE != BLOCK_N
    p = first_column + tl.arange(0, COLUMNS)
    n = tl.arange(0, BLOCK_N)
    p_inside = p < HEADDIM
    n_inside = n < DSTATE
    D_head = 0.0
    D_columns = p.to(tl.float32)
    if D_FORM == 1:
        D_head = tl.load(D).to(tl.float32)
    if D_FORM == 2:
        D_columns = tl.load(D + p, mask=p_inside, other=0.0).to(tl.float32)
    if HAS_INITSTATES:
        state = load_state(
            initial, p, n, initial_row, p_inside, n_inside, P_MASKED or N_MASKED, STATE_NP
        )
    else:
        state = tl.zeros((BLOCK_N, COLUMNS) if STATE_NP else (COLUMNS, BLOCK_N), tl.float32)
    full_end = begin + (end - begin) // CHUNK * CHUNK
    for position in tl.range(begin, full_end, CHUNK, num_stages=STAGES, disable_licm=True):
        if PREFETCH:
            prefetch_rows(
                x + first_column, position + CHUNK, end - 1, x_token, HEADDIM - first_column,
                CHUNK, COLUMNS,
            )  # fmt: skip
        state = scan_chunk(
            state, x, B, C, z, out, terms, plane, position, end, D_head, D_columns, p, n,
            p_inside, n_inside, x_token, B_token, C_token, z_token, out_token, D_FORM, HAS_Z,
            CHUNK, P_MASKED, N_MASKED, False, STATE_NP, PRECISION,
        )  # fmt: skip
        terms += CHUNK
    if full_end < end:
        state = scan_chunk(
            state, x, B, C, z, out, terms, plane, full_end, end, D_head, D_columns, p, n,
            p_inside, n_inside, x_token, B_token, C_token, z_token, out_token, D_FORM, HAS_Z,
            CHUNK, P_MASKED, N_MASKED, True, STATE_NP, PRECISION,
        )  # fmt: skip
    if HAS_FINAL_STATES:
        store_state(
            final, state, p, n, final_row, p_inside, n_inside, P_MASKED or N_MASKED, STATE_NP
        )


@triton.jit
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
    HEADDIM: tl.constexpr,
    DSTATE: tl.constexpr,
    PACKED: tl.constexpr,
    HAS_INITSTATES: tl.constexpr,
    HAS_FINAL_STATES: tl.constexpr,
    D_FORM: tl.constexpr,
    HAS_Z: tl.constexpr,
    CHUNK: tl.constexpr,
    SEGMENT: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    TAIL_P: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STATE_NP: tl.constexpr,
    PREFETCH: tl.constexpr,
    PDL: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Grid (nheads * parts, spans), or (…, segments) when SEGMENT is not 0.

    A head's columns are cut into parts of BLOCK_P, and with TAIL_P the last part is that wide. With
    SEGMENT, program r takes the segment numbered r by `spans`, whose state before its first token
    is `initial_states[r]`. D_FORM: 0 none, 1 per head, 2 per head and dim.
    """
    PARTS: tl.constexpr = (HEADDIM + BLOCK_P - 1) // BLOCK_P
    block = tl.program_id(1)
    span, span_start, begin, end, row = block_extent(
        spans, block, num_spans, spans_stride, span_tokens, PACKED, CHUNK, SEGMENT
    )
    if SEGMENT > 0:
        if begin >= end:
            return

    head = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS
    group = (head // heads_per_group).to(tl.int64)
    wide_head = head.to(tl.int64)
    x += wide_head * x_head
    B += group * B_group
    C += group * C_group
    out += wide_head * out_head
    if HAS_Z:
        z += wide_head * z_head
    if not PACKED:
        batch = span.to(tl.int64)
        x += batch * x_batch
        B += batch * B_batch
        C += batch * C_batch
        out += batch * out_batch
        if HAS_Z:
            z += batch * z_batch
        begin -= span_start
        end -= span_start
    if D_FORM > 0:
        D += head * D_head_stride
    initial = initial_states
    if HAS_INITSTATES:
        initial += block.to(tl.int64) * initial_slot + wide_head * initial_head
    final = final_states
    if HAS_FINAL_STATES:
        slot = tl.load(
            final_slots + span * final_slots_stride, mask=has_final_slots != 0, other=span
        ).to(tl.int64)
        final += slot * final_slot + wide_head * final_head
    plane = nheads.to(tl.int64) * rows * CHUNK
    terms = decay_terms + (wide_head * rows + row) * CHUNK
    if PDL:
        wait_for_previous()
    if TAIL_P > 0:
        if part == PARTS - 1:
            walk_columns(
                part * BLOCK_P, x, B, C, D, z, out, initial, final, terms, plane, begin, end,
                x_token, B_token, C_token, z_token, out_token, initial_row, final_row, HEADDIM,
                DSTATE, HAS_INITSTATES, HAS_FINAL_STATES, D_FORM, HAS_Z, CHUNK, PRECISION, TAIL_P,
                (HEADDIM - (PARTS - 1) * BLOCK_P) != TAIL_P, BLOCK_N, STATE_NP, PREFETCH, STAGES,
            )  # fmt: skip
        else:
            walk_columns(
                part * BLOCK_P, x, B, C, D, z, out, initial, final, terms, plane, begin, end,
                x_token, B_token, C_token, z_token, out_token, initial_row, final_row, HEADDIM,
                DSTATE, HAS_INITSTATES, HAS_FINAL_STATES, D_FORM, HAS_Z, CHUNK, PRECISION, BLOCK_P,
                False, BLOCK_N, STATE_NP, PREFETCH, STAGES,
            )  # fmt: skip
    else:
        walk_columns(
            part * BLOCK_P, x, B, C, D, z, out, initial, final, terms, plane, begin, end, x_token,
            B_token, C_token, z_token, out_token, initial_row, final_row, HEADDIM, DSTATE,
            HAS_INITSTATES, HAS_FINAL_STATES, D_FORM, HAS_Z, CHUNK, PRECISION, BLOCK_P,
            HEADDIM % BLOCK_P != 0, BLOCK_N, STATE_NP, PREFETCH, STAGES,
        )  # fmt: skip
