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
        return _segment_states(headdim, dstate, target)
    return _scan(headdim, dstate, values["PRECISION"] == "tf32x3", target)


def _segment_states(headdim: int, dstate: int, target: Target) -> tuple[Configuration, ...]:
    stages = (3, 1, 2) if target.arch == "sm_90a" else (1, 2, 3)
    warps = (8, 4) if dstate > 128 else (4, 8)
    return tuple(
        _configure(_tile(columns, dstate, state_np, stage, target), warp, stage)
        for columns, warp, stage, state_np in product(
            reversed(_widths(headdim)), warps, stages, (True, False)
        )
    )


def _scan(headdim: int, dstate: int, wide: bool, target: Target) -> tuple[Configuration, ...]:
    hopper = target.arch == "sm_90a"
    stages = (2, 1) if hopper and not wide else (1, 2)
    orders = (False, True) if hopper and not wide else (True, False)
    warps = (8, 4) if dstate > 128 or wide else (4, 8)
    found = []
    for (columns, tail), warp, stage, state_np in product(
        _parts(headdim, hopper and not wide), warps, stages, orders
    ):
        if tail and stage == 1:
            # On sm_90 a single stage with a tail of 16 columns gave NaN rows, and two stages with
            # both column blocks in one program read outside shared memory (Triton 3.7.1, H200).
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
