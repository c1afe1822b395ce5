"""Rows of a chunk from global to shared memory, for the kernels written in Gluon.

Gluon is young: what a release of 3.6.0 to 3.9.0 calls otherwise is named here.
"""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon._runtime import constexpr_function
from triton.experimental.gluon.language.nvidia.ampere import async_copy

# `async_copy_global_to_shared` up to 3.8.0, where 3.9.0 has `async_load`.
async_load = getattr(async_copy, "async_load", async_copy.async_copy_global_to_shared)

# `_reinterpret` up to 3.8.0.
reinterpret = getattr(
    gl.shared_memory_descriptor,
    "reinterpret" if hasattr(gl.shared_memory_descriptor, "reinterpret") else "_reinterpret",
)


@constexpr_function
def slab_rows(columns):
    """Rows of two-byte elements that 128 threads copy at once, sixteen bytes each."""
    return 1024 // columns


@constexpr_function
def slab_layout(columns):
    """A slab with sixteen bytes a thread and whole rows a warp."""
    return gl.BlockedLayout([1, 8], [256 // columns, columns // 8], [4, 1], [1, 0])


@gluon.jit
def copy_rows(
    tile,
    base,
    position,
    end,
    token_stride,
    columns,
    ROWS_MASKED: gl.constexpr,
    COLUMNS_MASKED: gl.constexpr,
    ROWS: gl.constexpr,
    COLUMNS: gl.constexpr,
):
    """Ask for ROWS rows from token `position` on, zeros from token `end` and column `columns`: what
    the mask leaves out is a PTX `cp.async` of no source bytes, which fills with zeros.

    Slab by slab, so that a thread keeps one address and steps from slab to slab.
    """
    layout: gl.constexpr = slab_layout(COLUMNS)
    SLAB: gl.constexpr = slab_rows(COLUMNS)
    token = gl.arange(0, SLAB, layout=gl.SliceLayout(1, layout))
    column = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, layout))
    start = base + gl.cast(position, gl.int64) * token_stride
    pointers = start + (token[:, None] * token_stride + column[None, :])
    step = gl.cast(token_stride, gl.int64) * SLAB
    for slab in gl.static_range(ROWS // SLAB):
        part = tile.slice(slab * SLAB, SLAB)
        if ROWS_MASKED or COLUMNS_MASKED:
            inside = rows_inside(
                token, column, end - position - slab * SLAB, columns, ROWS_MASKED, COLUMNS_MASKED
            )
            async_load(part, pointers, mask=inside)
        else:
            async_load(part, pointers)
        pointers += step


@gluon.jit
def rows_inside(
    token, column, tokens, columns, ROWS_MASKED: gl.constexpr, COLUMNS_MASKED: gl.constexpr
):
    """The mask of a slab of which something may be outside."""
    if ROWS_MASKED and COLUMNS_MASKED:
        return (token < tokens)[:, None] & (column < columns)[None, :]
    elif ROWS_MASKED:
        return (token < tokens)[:, None] & (column >= 0)[None, :]
    else:
        return (token >= 0)[:, None] & (column < columns)[None, :]


@gluon.jit
def saturated(value, element: gl.constexpr):
    """As an operand of type `element`; float16 saturates, so that a large value stays finite."""
    if element == gl.float16:
        value = gl.minimum(gl.maximum(value, -65504.0), 65504.0)
    return value.to(element)
