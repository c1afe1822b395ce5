"""Tiles of a chunk and the two updates that every form of the scan is made of."""

import triton
import triton.language as tl


@triton.jit
def load_tile(
    pointers,
    row_inside,
    column_inside,
    ROWS_MASKED: tl.constexpr,
    COLUMNS_MASKED: tl.constexpr,
):
    """A tile with zeros outside; masks that cannot be false are left out."""
    if ROWS_MASKED and COLUMNS_MASKED:
        return tl.load(pointers, mask=row_inside & column_inside, other=0.0)
    elif ROWS_MASKED:
        return tl.load(pointers, mask=row_inside, other=0.0)
    elif COLUMNS_MASKED:
        return tl.load(pointers, mask=column_inside, other=0.0)
    else:
        return tl.load(pointers)


@triton.jit
def store_tile(
    pointers,
    value,
    row_inside,
    column_inside,
    ROWS_MASKED: tl.constexpr,
    COLUMNS_MASKED: tl.constexpr,
):
    if ROWS_MASKED and COLUMNS_MASKED:
        tl.store(pointers, value, mask=row_inside & column_inside)
    elif ROWS_MASKED:
        tl.store(pointers, value, mask=row_inside)
    elif COLUMNS_MASKED:
        tl.store(pointers, value, mask=column_inside)
    else:
        tl.store(pointers, value)


@triton.jit
def to_operand(value, like):
    """A float32 tile as an operand of the dtype of `like`; float16 saturates, so that a large value
    stays finite."""
    if like.dtype == tl.float16:
        value = tl.minimum(tl.maximum(value, -65504.0), 65504.0)
    return value.to(like.dtype)


@triton.jit
def state_pointers(base, p, n, row_stride, STATE_NP: tl.constexpr):
    """Pointers to a (headdim, dstate) state with unit stride along dstate, in the tile's order."""
    if STATE_NP:
        return base + p.to(tl.int64)[None, :] * row_stride + n[:, None]
    else:
        return base + p.to(tl.int64)[:, None] * row_stride + n[None, :]


@triton.jit
def state_inside(p_inside, n_inside, STATE_NP: tl.constexpr):
    """The mask of a state tile in its order."""
    if STATE_NP:
        return n_inside[:, None] & p_inside[None, :]
    else:
        return p_inside[:, None] & n_inside[None, :]


@triton.jit
def load_state(
    base, p, n, row_stride, p_inside, n_inside, MASKED: tl.constexpr, STATE_NP: tl.constexpr
):
    """A state in float32, with zeros outside; without MASKED all of it is inside."""
    pointers = state_pointers(base, p, n, row_stride, STATE_NP)
    if MASKED:
        inside = state_inside(p_inside, n_inside, STATE_NP)
        return tl.load(pointers, mask=inside, other=0.0).to(tl.float32)
    else:
        return tl.load(pointers).to(tl.float32)


@triton.jit
def store_state(
    base, state, p, n, row_stride, p_inside, n_inside, MASKED: tl.constexpr, STATE_NP: tl.constexpr
):
    pointers = state_pointers(base, p, n, row_stride, STATE_NP)
    value = state.to(base.dtype.element_ty)
    if MASKED:
        tl.store(pointers, value, mask=state_inside(p_inside, n_inside, STATE_NP))
    else:
        tl.store(pointers, value)


@triton.jit
def update_state(state, B_tile, x_tile, w, decay, STATE_NP: tl.constexpr, PRECISION: tl.constexpr):
    """decay * S + sum over the chunk's tokens of w_m x_m B_m^T."""
    weighted = to_operand(x_tile.to(tl.float32) * w[:, None], x_tile)
    if STATE_NP:
        return tl.dot(tl.trans(B_tile), weighted, acc=state * decay, input_precision=PRECISION)
    else:
        return tl.dot(tl.trans(weighted), B_tile, acc=state * decay, input_precision=PRECISION)
