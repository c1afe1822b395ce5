"""The configurations a builtin launch may be compiled with, in a stated order of preference.

Without a tuning record the first candidate that fits the target is taken. On sm_90 the order is
the one measured on an H200 over the shapes of the README's table. Elsewhere it is the cautious
one: a single stage and no prefetch first, since pipelined dots are where Triton's known
miscompilations lie and nothing has been checked on those GPUs yet.

Every block is at least 64 columns wide, also for smaller head and state dims, where the rest is
masked: configurations with narrower blocks gave NaN rows, other bits at each call, or wrong finite
values on sm_90, compiled by Triton 3.6, and only a check of results revealed it. The one exception
is the last part of a head whose dim is a little above 64, in the configurations that were checked.
"""

from __future__ import annotations

from itertools import product

from ssd_aot.launches import Configuration, Constant, Launch
from ssd_aot.targets import Target

NARROWEST = 64

BY_HAND = "BY_HAND"
"""The constexpr of those configurations whose kernel is written in Gluon."""


def candidates(launch: Launch, target: Target) -> tuple[Configuration, ...]:
    """Configurations for one launch on one target, the preferred first."""
    values = dict(launch.constexprs)
    overlap = overlaps(target)
    if launch.kernel == "decay":
        blocks = ((16, 4), (32, 4), (16, 2), (64, 8), (8, 1))
        return tuple(
            _configure({"BLOCK_H": heads, "PDL": overlap}, warps, 1) for heads, warps in blocks
        )
    if launch.kernel == "state_passing":
        choices = ((256, 2, 4), (512, 4, 4), (1024, 4, 4), (256, 2, 2), (256, 2, 1))
        return tuple(
            _configure({"BLOCK": block, "PDL": overlap, "STAGES": stages}, warps, stages)
            for block, warps, stages in choices
        )
    headdim, dstate = values["HEADDIM"], values["DSTATE"]
    assert isinstance(headdim, int) and isinstance(dstate, int)
    if launch.kernel == "segment_states":
        others = _segment_states(headdim, dstate, target)
    else:
        others = _scan(headdim, dstate, values["PRECISION"] == "tf32x3", target)
    by_hand = _by_hand(launch) if target.arch == "sm_90a" else ()
    if by_hand:
        # Of the others only those that came near: they share the first one's warps and stages.
        near = others[0].num_warps, others[0].num_stages
        others = tuple(c for c in others if (c.num_warps, c.num_stages) == near)
    return (*by_hand, *others)


def _segment_states(headdim: int, dstate: int, target: Target) -> tuple[Configuration, ...]:
    stages = (3, 1, 2) if target.arch == "sm_90a" else (1, 2, 3)
    warps = (8, 4) if dstate > 128 else (4, 8)
    return tuple(
        _configure(_tile(columns, dstate, state_np, stage, target), warp, stage)
        for columns, warp, stage, state_np in product(
            reversed(_widths(headdim)), warps, stages, (True, False)
        )
    )


def _by_hand(launch: Launch) -> tuple[Configuration, ...]:
    """Those of the kernels written in Gluon, for the launches that they take."""
    values = dict(launch.constexprs)
    x = next(argument for argument in launch.arguments if argument.name == "x")
    if x.specialisation != "aligned" or x.type not in ("*bf16", "*fp16"):
        return ()
    if values["DSTATE"] not in (64, 128) or values.get("HAS_Z"):
        return ()
    tile: dict[str, Constant] = {BY_HAND: True, "BLOCK_P": NARROWEST, "PDL": True}
    if launch.kernel == "scan":
        return (_configure(tile, 4, 1),)
    if values["SEGMENT"] == 0:
        return ()
    return tuple(_configure({**tile, "BUFFERS": buffers}, 4, 1) for buffers in (3, 4))


def _scan(headdim: int, dstate: int, wide: bool, target: Target) -> tuple[Configuration, ...]:
    hopper = target.arch == "sm_90a"
    stages = (2, 1) if hopper and not wide else (1, 2)
    orders = (False, True) if hopper and not wide else (True, False)
    warps = (8, 4) if dstate > 128 or wide else (4, 8)
    found = []
    for (columns, tail), warp, stage, state_np in product(
        _parts(headdim, hopper and not wide), warps, stages, orders
    ):
        if tail and (stage == 1 or state_np):
            # On sm_90 a tail of 16 columns gave NaN rows with a single stage, and reads outside
            # memory or wrong results with the state as (dstate, headdim) and two (Triton 3.7.1,
            # H200).
            continue
        for prefetch in (True, False) if hopper else (False, True):
            tile = _tile(columns, dstate, state_np, stage, target)
            found.append(_configure({**tile, "TAIL_P": tail, "PREFETCH": prefetch}, warp, stage))
    return tuple(found)


def _parts(headdim: int, tails: bool) -> tuple[tuple[int, int], ...]:
    """(columns a program takes, columns of the last part or 0 for as many): the last part of a
    head of 80 in a program of 16 columns, on the GPU where that was measured and found right."""
    plain = tuple((columns, 0) for columns in _widths(headdim))
    rest = headdim % NARROWEST
    if tails and headdim > NARROWEST and 0 < rest <= NARROWEST // 2:
        return ((NARROWEST, max(16, 1 << (rest - 1).bit_length())), *plain)
    return plain


def _widths(headdim: int) -> tuple[int, ...]:
    """Columns of a head that one program takes: 64, or all of a larger head."""
    return (NARROWEST,) if headdim <= NARROWEST else (NARROWEST, 128)


def _tile(
    columns: int, dstate: int, state_np: bool, stages: int, target: Target
) -> dict[str, Constant]:
    return {
        "BLOCK_P": columns,
        "BLOCK_N": max(NARROWEST, 1 << (dstate - 1).bit_length()),
        "STATE_NP": state_np,
        "STAGES": stages,
        "PDL": overlaps(target),
    }


def overlaps(target: Target) -> bool:
    """Whether launches overlap by programmatic dependent launch: where the architecture has it
    and it was measured."""
    return target.arch == "sm_90a"


def _configure(constexprs: dict[str, Constant], num_warps: int, num_stages: int) -> Configuration:
    return Configuration(tuple(sorted(constexprs.items())), num_warps, num_stages)
