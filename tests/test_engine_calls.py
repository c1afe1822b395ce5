"""An engine's operation called to be measured: which launches its batches reach, and what its
tuners take."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from engine_bundles import serving
from engine_modules import engine_folder, importable
from engine_tuning_builders import plan, pruned_at
from signature_builders import signature

from ssd_aot.engines.engine import ENGINES, Engine, engine
from ssd_aot.engines.groups import TuningGroup, tuning_groups
from ssd_aot.engines.process import EngineProcess
from ssd_aot.engines.serving_calls import ServingBatch, check_batches
from ssd_aot.engines.tracing import Reached
from ssd_aot.engines.tuning_plan import PlannedGroup, every_check, plan_groups
from ssd_aot.errors import HostError
from ssd_aot.signatures import Signature
from ssd_aot.targets import target
from ssd_aot.triton_compat.forcing import force_choice, refusing_to_tune

FIXTURE = Path(__file__).parent / "fixture_engine"
PRUNED = "fixture_engine.operation:pruned"


MATRIX = [
    signature(nheads=nheads, ngroups=nheads // 16, tp=128 // nheads, has_initstates=has,
              is_cont_batched=packed, state_dtype=dtype, num_seqs=num_seqs)
    for nheads in (32, 128) for has in (False, True) for packed in (False, True)
    for dtype in ("fp32", "fp16") for num_seqs in ((1, 1), (2, 1024))
]  # fmt: skip


@dataclass(frozen=True)
class Traced:
    """An engine's groups, and what batches reach."""

    groups: tuple[TuningGroup, ...]
    batches: tuple[ServingBatch, ...]
    reached: tuple[Reached, ...]

    def plan(self, built: Any = None) -> tuple[tuple[PlannedGroup, ...], tuple[TuningGroup, ...]]:
        return plan_groups(self.groups, self.batches, self.reached, built)


def reached_by(name: str, batches: Sequence[ServingBatch]) -> tuple[Reached, ...]:
    with EngineProcess(name, target("h200")) as process:
        return process.trace_batches(batches)


def traced(name: str, signatures: Sequence[Signature]) -> Traced:
    with EngineProcess(name, target("h200")) as process:
        groups = tuning_groups(process.trace(signatures))
    batches = every_check(signatures)
    return Traced(groups, batches, reached_by(name, batches))


@pytest.mark.parametrize("name", ENGINES)
def test_each_choice_of_an_engine_is_judged_and_timed(name: str, tmp_path: Path) -> None:
    folder = engine_folder(name)
    if folder is None:
        pytest.skip(f"no modules of {name} here: python tests/engine_modules.py {name}")
    signatures = [one for one in MATRIX if not engine(name).refusal(one)]

    with importable(name, folder, tmp_path):
        found = traced(name, signatures)
        planned, apart = found.plan()
        timed = tuple(dict.fromkeys(batch for one in planned for batch in one.timed))
        reached = dict(zip(timed, reached_by(name, timed), strict=True))

    choices = [group for group in found.groups if group.identity and len(group.candidates) > 1]
    assert apart == () and len(planned) == len(choices) > 0
    for one in planned:
        assert len(one.checks) >= 4 and len({batch.seed for batch in one.checks}) >= 2
        heads, sequences = one.timed[0].signature.nheads, one.timed[0].signature.num_seqs
        shapes = ("1x512", "4x8192", "16x8192") if sequences[1] > 1 else ("1x512", "1x2048")
        assert [batch.name for batch in one.timed][: len(shapes)] == [
            f"{heads}h {shape}" for shape in shapes
        ]
        assert one.group.tuning is not None
        for batch in one.timed:
            assert one.group.tuning.key in {key for _, key in reached[batch]}
    # Nothing but what serving reaches is run, and what a tuner prunes depends on its key alone.
    known = {
        (traced.captured.launch.identity, group.tuning.key if group.tuning else "")
        for group in found.groups for traced in group.launches
    }  # fmt: skip
    assert set[Any]().union(*found.reached, *reached.values()) <= known
    for group in choices:
        offered = {
            tuple(candidate.configuration for candidate in launch.captured.candidates)
            for launch in group.launches
        }
        assert offered == {group.candidates}


def test_every_launch_of_vllm_is_judged(tmp_path: Path) -> None:
    folder = engine_folder("vllm")
    if folder is None:
        pytest.skip("no modules of vllm here: python tests/engine_modules.py vllm")

    with importable("vllm", folder, tmp_path):
        planned, _ = traced("vllm", [s for s in MATRIX if s.is_cont_batched]).plan()

    assert len(planned) == 16
    for one in planned:
        assert one.judged == tuple(sorted(t.captured.launch.identity for t in one.group.launches))


def test_a_call_that_ends_at_a_launch_without_a_candidate_judges_nothing(tmp_path: Path) -> None:
    """As that of TensorRT-LLM with initial states for sequences in rows."""
    rows = [signature(is_cont_batched=False, num_seqs=(2, 8), has_initstates=has)
            for has in (False, True)]  # fmt: skip

    with importable("tensorrt_llm", FIXTURE, tmp_path):
        found = traced("tensorrt_llm", rows)
    scans = [group for group in found.groups if group.kernel.endswith(":_chunk_scan_fwd_kernel")]
    ends = set(filter(has_initial_states, scans))
    built = {
        launch.captured.launch.identity: [
            SimpleNamespace(configuration=one, object=SimpleNamespace(registers=1, spill_bytes=0))
            for one in group.candidates
        ]
        for group in set(found.groups) - ends for launch in group.launches
    }  # fmt: skip
    planned, apart = found.plan(built)

    assert ends and ends < set(apart)
    assert all(map(has_initial_states, apart))
    assert planned and not any(map(has_initial_states, (one.group for one in planned)))
    assert not any(
        batch.signature.has_initstates for one in planned for batch in one.checks + one.timed
    )


def has_initial_states(group: TuningGroup) -> bool:
    return any(
        dict(one.captured.launch.constexprs)["HAS_INITSTATES"] is True for one in group.launches
    )


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_is_adopted_where_the_process_has_imported_it(name: str, tmp_path: Path) -> None:
    folder = engine_folder(name)
    if folder is None:
        pytest.skip(f"no modules of {name} here: python tests/engine_modules.py {name}")
    fresh: Any = type(engine(name))()
    batch = ServingBatch(signature(has_initstates=False, is_cont_batched=True), (300,))

    with importable(name, folder, tmp_path):
        before = set(sys.modules)
        assert not fresh.adopt() and set(sys.modules) == before
        with engine(name).imported(target("h200")):
            imported = set(sys.modules)
            assert fresh.adopt() and set(sys.modules) == imported
        # What is adopted stays.
        prepared = fresh.prepare(batch, batch.problem("meta"))

    assert prepared.run.func.__name__.startswith("mamba_chunk_scan_combined")


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


BOUNDS = [(1, 1), (2, 1024), (3, 8), (17, 64), (4, 4), (16, 16)]


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("packed", [False, True], ids=["rows", "packed"])
@pytest.mark.parametrize("aligned", [False, True], ids=["any", "chunk aligned"])
def test_batches_that_judge_are_those_of_their_signature(
    bounds: tuple[int, int], packed: bool, aligned: bool
) -> None:
    """And reach each class of counts that it has."""
    lengths = "chunk_aligned" if aligned else "any"
    one = signature(num_seqs=bounds, is_cont_batched=packed, lengths=lengths, chunk_size=128)

    batches = list(check_batches(one))

    for batch in batches:
        assert bounds[0] <= len(batch.lengths) <= bounds[1]
        assert packed or len(set(batch.lengths)) == 1
        assert not aligned or all(length % 128 == 0 for length in batch.lengths)
        assert all(length > 0 for length in batch.lengths)
    counts = {len(batch.lengths) for batch in batches}
    assert {n % 16 == 0 for n in counts} == {n % 16 == 0 for n in range(bounds[0], bounds[1] + 1)}
    tokens = {sum(batch.lengths) % 16 == 0 for batch in batches}
    assert tokens == ({True} if aligned else {True, False} if packed or bounds[1] > 16 else tokens)


@pytest.mark.parametrize("name", ENGINES)
def test_a_module_that_is_being_imported_is_not_adopted(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sys.modules[type(engine(name)).__module__]
    for attribute in ("OPERATION", "METADATA"):
        if hasattr(module, attribute):
            place = getattr(module, attribute)
            monkeypatch.setitem(sys.modules, place, ModuleType(place))

    measured = engine(name)

    assert isinstance(measured, Engine)
    assert not measured.adopt()
