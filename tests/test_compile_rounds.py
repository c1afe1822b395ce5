"""In which order launches are compiled, and when a build that cannot be whole ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundle_builders import TOOLCHAIN, code_object
from command_line import TINY
from spec_builders import write_spec

from ssd_aot.building import build
from ssd_aot.compilation import compile_rounds
from ssd_aot.compilation.build_cache import BuildCache
from ssd_aot.compilation.compile_rounds import Rounds, compile_first_fitting
from ssd_aot.compilation.compiling import Compiled, CompileResult, CompileTask, DoesNotFit
from ssd_aot.errors import BuildError
from ssd_aot.launches import Configuration
from ssd_aot.plan import Plan, make_plan
from ssd_aot.spec import load_spec
from ssd_aot.targets import target
from ssd_aot.triton_compat import CompiledObject

MODELS = """\
version: 1
models:
  narrow: {nheads: 4, headdim: 64, dstate: 64, ngroups: 1}
  wide: {nheads: 4, headdim: 128, dstate: 256, ngroups: 1}
  wider: {nheads: 4, headdim: 64, dstate: 256, ngroups: 1}
matrix: {HAS_INITSTATES: [true], num_seqs: [300..400], dtype: [fp32]}
"""
L40S = target("l40s")
NO_CODE = CompiledObject(b"", code_object(b"", "sm_89"))


class Compiler:
    """Stands in for `compile_all`: what holds more than `room` states does not fit, and neither do
    the configurations that are `unfit`. Remembers the tasks of each round."""

    def __init__(self, room: int, unfit: Sequence[Configuration] = ()) -> None:
        self.rounds: list[list[CompileTask]] = []
        self._room, self.unfit = room, unfit

    def __call__(self, tasks: Sequence[CompileTask], **_: Any) -> CompileResult:
        self.rounds.append(list(tasks))
        fitting = [task for task in tasks if self._fits(task)]
        return CompileResult(
            compiled=tuple(Compiled(task, NO_CODE) for task in fitting),
            unfit=tuple(DoesNotFit(task, 131072, 101376) for task in tasks if task not in fitting),
            failures=(), fresh=len(tasks), reused=0, elapsed_s=1.0, toolchain=TOOLCHAIN,
            reproducible=True,
        )  # fmt: skip

    def _fits(self, task: CompileTask) -> bool:
        states = dict(task.variant.launch.constexprs).get("DSTATE", 0)
        assert isinstance(states, int)
        return states <= self._room and task.variant.configuration not in self.unfit


def plan_of(folder: Path, text: str = MODELS) -> Plan:
    return make_plan(load_spec([write_spec(folder, text)]), [L40S])


def settled(
    plan: Plan, compiler: Compiler, monkeypatch: pytest.MonkeyPatch, folder: Path, **options: Any
) -> Rounds:
    monkeypatch.setattr(compile_rounds, "compile_all", compiler)
    given = {"jobs": 4, "keep_going": False, **options}
    return compile_first_fitting(
        plan, cache=BuildCache.beside(folder / "b"), max_spill_bytes=None, on_progress=None, **given
    )


def states(tasks: Sequence[CompileTask]) -> set[Any]:
    return {dict(task.variant.launch.constexprs).get("DSTATE") for task in tasks}


def test_a_launch_that_may_not_fit_is_settled_before_anything_else_is_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, compiler = plan_of(tmp_path), Compiler(room=128)

    rounds = settled(plan, compiler, monkeypatch, tmp_path)

    assert all(states(made) == {256} for made in compiler.rounds)
    (reason,) = rounds.reasons.values()
    assert "no candidate fits: the smallest of" in reason
    assert rounds.untried == len(plan.launches) - 1
    assert not rounds.compiled


def test_its_candidates_are_compiled_as_many_at_a_time_as_there_are_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = Compiler(room=128)

    settled(plan_of(tmp_path), compiler, monkeypatch, tmp_path, jobs=4)

    assert {len(made) for made in compiler.rounds} == {4}


@pytest.mark.parametrize("jobs", [1, 3, 16])
def test_the_first_candidate_that_fits_is_taken_whatever_the_processes(
    jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(tmp_path)
    scans = [planned for planned in plan.launches if planned.launch.kernel == "scan"]
    compiler = Compiler(room=256, unfit=[c for scan in scans for c in scan.candidates[:2]])

    rounds = settled(plan, compiler, monkeypatch, tmp_path, jobs=jobs)

    assert not rounds.reasons
    for planned, compiled in rounds.compiled.items():
        wanted = next(c for c in planned.candidates if c not in compiler.unfit)
        assert compiled.task.variant.configuration == wanted


def test_a_build_that_keeps_going_names_every_launch_without_a_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(tmp_path)

    rounds = settled(plan, Compiler(room=128), monkeypatch, tmp_path, keep_going=True)

    assert len(rounds.reasons) == 2
    assert len(rounds.compiled) == len(plan.launches) - 2
    assert rounds.untried == 0


def test_launches_that_fit_without_doubt_are_compiled_in_one_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, compiler = plan_of(tmp_path, MODELS.replace("fp32", "bf16")), Compiler(room=256)

    settled(plan, compiler, monkeypatch, tmp_path)

    assert [len(made) for made in compiler.rounds] == [len(plan.launches)]


def test_a_build_ends_when_a_launch_has_no_candidate_and_says_what_was_left(
    tmp_path: Path,
) -> None:
    """With a real compiler; C43."""
    small = replace(L40S, shared_bytes_optin=8_000)
    options = "{STAGES: 1, STATE_NP: true, PREFETCH: false, num_warps: 4}"
    spec = load_spec([write_spec(tmp_path, f"{TINY}pin: {{scan: {options}}}\n")])

    with pytest.raises(BuildError) as caught:
        build(spec, [small], tmp_path / "b", jobs=1)

    assert "no candidate fits: the smallest of 1 needs " in caught.value.found
    assert "allows 8000" in caught.value.found
    assert "and 7 not tried to the end" in caught.value.found
    assert len(list((tmp_path / "b.partial/entries").iterdir())) == 1
