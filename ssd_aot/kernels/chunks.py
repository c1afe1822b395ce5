"""One chunk of the scan, for one head and one block of its columns.

Per chunk of tokens, with the decay terms of `decay`:

    y_l = exp2(cum_l) C_l S + sum_{m<=l} exp2(cum_l - u_m) (C_l . B_m) x_m + D x_l
    S   = exp2(total) S + sum_m exp2(total - u_m) x_m B_m^T
"""

import triton
import triton.language as tl

from ssd_aot.kernels.tiles import load_tile, store_tile, to_operand, update_state


@triton.jit
def prefetch_rows(
    base, position, last, token_stride, columns, CHUNK: tl.constexpr, COLUMNS: tl.constexpr
):
    """Ask the L2 cache for the rows of the next chunk, one request a 32-byte sector."""
    BYTES: tl.constexpr = base.dtype.element_ty.primitive_bitwidth // 8
    row = tl.minimum(position + tl.arange(0, CHUNK), last).to(tl.int64)[:, None]
    # Where the block is wider than what is left of the head, its last sector is asked for again.
    sector = tl.minimum(tl.arange(0, COLUMNS * BYTES // 32), (columns * BYTES - 1) // 32)[None, :]
    address = (base + row * token_stride).to(tl.int64) + sector * 32
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [address],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def chunk_scores(C_tile, B_tile, cum, u, D_head, D_FORM: tl.constexpr, PRECISION: tl.constexpr):
    """(token, token) weights of a chunk's own inputs in its outputs, D per head on the diagonal."""
    token = tl.arange(0, C_tile.shape[0])
    scores = tl.dot(C_tile, tl.trans(B_tile), input_precision=PRECISION)
    weights = tl.exp2(cum[:, None] - u[None, :])
    scores = scores * tl.where(token[:, None] >= token[None, :], weights, 0.0)
    if D_FORM == 1:
        scores += tl.where(token[:, None] == token[None, :], D_head, 0.0)
    return scores


@triton.jit
def scan_chunk(
    state,
    x,
    B,
    C,
    z,
    out,
    terms,
    plane,
    position,
    end,
    D_head,
    D_columns,
    p,
    n,
    p_inside,
    n_inside,
    x_token,
    B_token,
    C_token,
    z_token,
    out_token,
    D_FORM: tl.constexpr,
    HAS_Z: tl.constexpr,
    CHUNK: tl.constexpr,
    P_MASKED: tl.constexpr,
    N_MASKED: tl.constexpr,
    ROWS_MASKED: tl.constexpr,
    STATE_NP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One chunk: writes its outputs, returns the state after it."""
    token = tl.arange(0, CHUNK)
    row_inside = (token < end - position)[:, None]
    start = tl.cast(position, tl.int64)
    C_tile = load_tile(
        C + start * C_token + (token[:, None] * C_token + n[None, :]),
        row_inside, n_inside[None, :], ROWS_MASKED, N_MASKED,
    )  # fmt: skip
    B_tile = load_tile(
        B + start * B_token + (token[:, None] * B_token + n[None, :]),
        row_inside, n_inside[None, :], ROWS_MASKED, N_MASKED,
    )  # fmt: skip
    cum = tl.load(terms + token)
    u = tl.load(terms + plane + token)
    total = tl.load(terms + (CHUNK - 1))
    w = tl.exp2(total - u)
    scores = chunk_scores(C_tile, B_tile, cum, u, D_head, D_FORM, PRECISION)
    x_tile = load_tile(
        x + start * x_token + (token[:, None] * x_token + p[None, :]),
        row_inside, p_inside[None, :], ROWS_MASKED, P_MASKED,
    )  # fmt: skip
    operand = to_operand(state, C_tile)
    if not STATE_NP:
        operand = tl.trans(operand)
    y = tl.dot(C_tile, operand, input_precision=PRECISION) * tl.exp2(cum)[:, None]
    y = tl.dot(to_operand(scores, x_tile), x_tile, acc=y, input_precision=PRECISION)
    if D_FORM == 2:
        y += D_columns[None, :] * x_tile.to(tl.float32)
    if HAS_Z:
        gate = load_tile(
            z + start * z_token + (token[:, None] * z_token + p[None, :]),
            row_inside, p_inside[None, :], ROWS_MASKED, P_MASKED,
        ).to(tl.float32)  # fmt: skip
        y *= gate * tl.sigmoid(gate)
    store_tile(
        out + start * out_token + (token[:, None] * out_token + p[None, :]),
        y.to(out.dtype.element_ty),
        row_inside, p_inside[None, :], ROWS_MASKED, P_MASKED,
    )  # fmt: skip
    return update_state(state, B_tile, x_tile, w, tl.exp2(total), STATE_NP, PRECISION)
