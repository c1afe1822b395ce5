"""An engine's operation called to be measured: which launches its batches reach, and what its
tuners take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engine_bundles import serving
from engine_modules import engine_folder, importable
from engine_tuning_builders import plan, pruned_at
from signature_builders import signature

from ssd_aot.engines.groups import tuning_groups
from ssd_aot.engines.process import EngineProcess
from ssd_aot.engines.tuning_plan import every_check, plan_groups
from ssd_aot.errors import HostError
from ssd_aot.targets import target
from ssd_aot.triton_compat.forcing import force_choice, refusing_to_tune

PRUNED = "fixture_engine.operation:pruned"


def test_every_launch_of_vllm_is_judged(tmp_path: Path) -> None:
    """What the batches reach is what serving can reach: all of it, and nothing else."""
    folder = engine_folder("vllm")
    if folder is None:
        pytest.skip("no modules of vllm here: python tests/engine_modules.py vllm")
    signatures = [
        signature(nheads=nheads, ngroups=nheads // 16, tp=128 // nheads, has_initstates=has,
                  state_dtype=dtype, num_seqs=num_seqs)
        for nheads in (32, 128) for has in (False, True) for dtype in ("fp32", "fp16")
        for num_seqs in ((1, 1), (2, 1024))
    ]  # fmt: skip
    batches = every_check(signatures)

    with importable("vllm", folder, tmp_path):
        with EngineProcess("vllm", target("h200")) as process:
            groups = tuning_groups(process.trace(signatures))
        with EngineProcess("vllm", target("h200")) as process:
            reached = process.trace_batches(batches)

    planned, apart = plan_groups(groups, batches, reached)
    assert apart == () and len(planned) == len(groups) == 16
    for one in planned:
        assert one.judged == tuple(sorted(t.captured.launch.identity for t in one.group.launches))
        assert len(one.checks) >= 4 and len({batch.seed for batch in one.checks}) >= 2
        assert [batch.name for batch in one.timed][:3] == [
            f"{one.timed[0].signature.nheads}h {shape}" for shape in ("1x512", "4x8192", "16x8192")
        ]  # fmt: skip
    known = {(t.captured.launch.identity, g.tuning.key) for g in groups for t in g.launches
             if g.tuning is not None}  # fmt: skip
    assert set[Any]().union(*reached) <= known


def test_a_tuner_takes_what_is_forced_though_its_engine_remembers_choices(
    tmp_path: Path,
) -> None:
    planned = plan(tmp_path, pruned_at(64))
    (one,) = planned.groups
    tuning = one.group.tuning
    assert tuning is not None
    blocks: list[int] = []
    with serving() as (op, _), refusing_to_tune():
        own = op.pruned.fn.run

        def seen(*args: Any, **kwargs: Any) -> Any:
            blocks.append(kwargs["BLOCK"])
            return own(*args, **kwargs)

        op.pruned.fn.run = seen
        for candidate in one.group.launches[0].captured.candidates:
            force_choice(PRUNED, tuning.tuning_key, candidate.spelled)
            for _ in range(2):
                op.run_pruned(64)
        with pytest.raises(HostError, match="that the trace did not show"):
            op.run_pruned(640)

    assert blocks == [16, 16, 32, 32, 64, 64]
