"""One chunk of the scan for Hopper, with copies, tensor cores and arithmetic ordered by hand.

The mathematics are those of `chunks`. It is written in Gluon, whose programs say where tiles lie
and what may be in flight, since Triton's pipeliner asks for the next chunk at a chunk's end and
waits for it at once:

- the next chunk is copied while this one is worked on, into the other of two sets of tiles;
- scores C B^T and C S run on the tensor cores while the next chunk is asked for;
- outputs are stored while the state's product runs.

Of a chunk, `terms` are its cums, `plane` is how far behind them its u lie (see `decay`), and
`total` is its last cum. Tiles lie in shared memory, layouts are named `_tile` where they are those
of one. Four warps, 128 threads; inputs and outputs are two bytes wide.
"""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ssd_aot.kernels.hopper_copies import (
    async_load,
    copy_rows,
    rows_inside,
    saturated,
    slab_layout,
    slab_rows,
)


@gluon.jit
def allocate_tiles(
    element: gl.constexpr,
    CHUNK: gl.constexpr,
    DSTATE: gl.constexpr,
    BLOCK_P: gl.constexpr,
    n_tile: gl.constexpr,
    p_tile: gl.constexpr,
):
    """Shared memory for one chunk: x, B, C, and the two planes of its decay terms."""
    flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    return (
        gl.allocate_shared_memory(element, [CHUNK, BLOCK_P], p_tile),
        gl.allocate_shared_memory(element, [CHUNK, DSTATE], n_tile),
        gl.allocate_shared_memory(element, [CHUNK, DSTATE], n_tile),
        gl.allocate_shared_memory(gl.float32, [CHUNK], flat),
        gl.allocate_shared_memory(gl.float32, [CHUNK], flat),
    )


@gluon.jit
def copy_inputs(
    tiles,
    x,
    B,
    C,
    position,
    end,
    columns,
    x_token,
    B_token,
    C_token,
    DSTATE: gl.constexpr,
    P_MASKED: gl.constexpr,
    CHUNK: gl.constexpr,
    BLOCK_P: gl.constexpr,
):
    """Ask for the chunk at `position`."""
    x_tile, B_tile, C_tile, _, _ = tiles
    if position + CHUNK <= end:
        copy_rows(C_tile, C, position, end, C_token, DSTATE, False, False, CHUNK, DSTATE)
        copy_rows(B_tile, B, position, end, B_token, DSTATE, False, False, CHUNK, DSTATE)
        copy_rows(x_tile, x, position, end, x_token, columns, False, P_MASKED, CHUNK, BLOCK_P)
    else:
        copy_rows(C_tile, C, position, end, C_token, DSTATE, True, False, CHUNK, DSTATE)
        copy_rows(B_tile, B, position, end, B_token, DSTATE, True, False, CHUNK, DSTATE)
        copy_rows(x_tile, x, position, end, x_token, columns, True, P_MASKED, CHUNK, BLOCK_P)


@gluon.jit
def copy_terms(tiles, terms, plane, CHUNK: gl.constexpr):
    term = gl.arange(0, CHUNK, layout=gl.BlockedLayout([4], [32], [4], [0]))
    async_load(tiles[3], terms + term)
    async_load(tiles[4], terms + plane + term)


@gluon.jit
def chunk(
    state,
    total,
    tiles,
    next_tiles,
    state_tile,
    out_tile,
    x,
    B,
    C,
    out,
    terms,
    plane,
    position,
    end,
    columns,
    D_head,
    D_columns,
    x_token,
    B_token,
    C_token,
    out_token,
    DSTATE: gl.constexpr,
    D_FORM: gl.constexpr,
    P_MASKED: gl.constexpr,
    CHUNK: gl.constexpr,
    BLOCK_P: gl.constexpr,
    scores_layout: gl.constexpr,
    y_layout: gl.constexpr,
    state_layout: gl.constexpr,
):
    """One chunk, whose tiles were asked for before: asks for the next one's, writes its outputs,
    returns the state after it and the next one's `total`, which is this one's after the last.

    `state` is (BLOCK_P, DSTATE) in float32. Scores are (CHUNK, CHUNK), outputs (CHUNK, BLOCK_P).
    """
    element: gl.constexpr = x.dtype.element_ty
    y_operand: gl.constexpr = gl.DotOperandLayout(0, y_layout, 2)
    state_operand: gl.constexpr = gl.DotOperandLayout(0, state_layout, 2)
    x_tile, B_tile, C_tile, cum_tile, u_tile = tiles
    state_tile.store(saturated(state, element))
    # The compiler puts the barriers between those who write shared memory and those who read it.
    async_copy.wait_group(0)
    fence_async_shared()
    no_scores = gl.zeros([CHUNK, CHUNK], gl.float32, layout=scores_layout)
    no_y = gl.zeros([CHUNK, BLOCK_P], gl.float32, layout=y_layout)
    scores = warpgroup_mma(C_tile, B_tile.permute((1, 0)), no_scores, use_acc=False, is_async=True)
    y = warpgroup_mma(C_tile, state_tile.permute((1, 0)), no_y, use_acc=False, is_async=True)

    following = position + CHUNK
    next_total = total
    if following < end:
        copy_inputs(
            next_tiles, x, B, C, following, end, columns, x_token, B_token, C_token, DSTATE,
            P_MASKED, CHUNK, BLOCK_P,
        )  # fmt: skip
        copy_terms(next_tiles, terms + CHUNK, plane, CHUNK)
        next_total = gl.load(terms + (2 * CHUNK - 1))
    async_copy.commit_group()

    row = gl.arange(0, CHUNK, layout=gl.SliceLayout(1, scores_layout))[:, None]
    column = gl.arange(0, CHUNK, layout=gl.SliceLayout(0, scores_layout))[None, :]
    cum = cum_tile.load(gl.SliceLayout(1, scores_layout))[:, None]
    u = u_tile.load(gl.SliceLayout(0, scores_layout))[None, :]
    weights = gl.where(row >= column, gl.exp2(cum - u), 0.0)
    # Named in the wait, or the compiler works the weights out behind it.
    scores, weights = warpgroup_mma_wait(1, deps=[scores, weights])
    scores *= weights
    if D_FORM == 1:
        scores += gl.where(row == column, D_head, 0.0)
    scores_operand = gl.convert_layout(saturated(scores, element), y_operand)
    y = warpgroup_mma_wait(0, deps=[y])
    y *= gl.exp2(cum_tile.load(gl.SliceLayout(1, y_layout)))[:, None]
    y = warpgroup_mma(scores_operand, x_tile, y, is_async=True)

    w = gl.exp2(total - u_tile.load(gl.SliceLayout(0, state_operand)))[None, :]
    weighted = x_tile.permute((1, 0)).load(state_operand).to(gl.float32) * w
    weighted = saturated(weighted, element)
    state = warpgroup_mma(weighted, B_tile, state * gl.exp2(total), is_async=True)
    y, scores_operand = warpgroup_mma_wait(1, deps=[y, scores_operand])
    if D_FORM == 2:
        y += D_columns[None, :] * x_tile.load(y_layout).to(gl.float32)
    out_tile.store(y.to(out.dtype.element_ty))
    store_rows(out_tile, out, position, end, out_token, columns, P_MASKED)
    state, weighted = warpgroup_mma_wait(0, deps=[state, weighted])
    return state, next_total


@gluon.jit
def store_rows(
    tile,
    out,
    position,
    end,
    out_token,
    columns,
    P_MASKED: gl.constexpr,
):
    """Write the outputs of the chunk at `position` from shared memory, in whole lines."""
    ROWS: gl.constexpr = tile.shape[0]
    COLUMNS: gl.constexpr = tile.shape[1]
    layout: gl.constexpr = slab_layout(COLUMNS)
    SLAB: gl.constexpr = slab_rows(COLUMNS)
    row = gl.arange(0, SLAB, layout=gl.SliceLayout(1, layout))
    column = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, layout))
    start = out + gl.cast(position, gl.int64) * out_token
    pointers = start + (row[:, None] * out_token + column[None, :])
    step = gl.cast(out_token, gl.int64) * SLAB
    for slab in gl.static_range(ROWS // SLAB):
        inside = rows_inside(row, column, end - position - slab * SLAB, columns, True, P_MASKED)
        gl.store(pointers, tile.slice(slab * SLAB, SLAB).load(layout), mask=inside)
        pointers += step
