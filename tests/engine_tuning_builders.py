"""What the tests of an engine's tuning share: the fixture engine's groups, planned, and a
measurement on the CPU whose results come from the reference and whose times and faults the test
decides."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_bundles import ONE_MODEL, Calls, installed, scan
from spec_builders import write_spec
from tuning_builders import Fault

from ssd_aot.engines.groups import TuningGroup, function_name, tuning_groups
from ssd_aot.engines.process import EngineProcess
from ssd_aot.engines.reaching import reached_signatures
from ssd_aot.engines.serving_calls import ServingBatch
from ssd_aot.engines.tuner import tune_groups
from ssd_aot.engines.tuning_plan import PlannedGroup, every_check, plan_groups
from ssd_aot.launches import Configuration
from ssd_aot.problems import Problem, Results
from ssd_aot.spec import load_spec
from ssd_aot.targets import target
from ssd_aot.triton_compat import toolchain
from ssd_aot.tuning.attempts import Clock
from ssd_aot.tuning.choices import RecordFile
from ssd_aot.tuning.record_text import read_record, record_at
from ssd_aot.tuning.records import Entry, Record, Session
from ssd_aot.tuning.tune_report import TuneReport

H200 = target("h200")
VERSION = "0.0.1"
"""That which the fixture is installed as."""

Tried = tuple[str, int, int]
"""A kernel's function, the size it is tuned for, and the BLOCK of a candidate."""


def session(**fields: str) -> Session:
    """This host's compiler, and a GPU that is elsewhere."""
    told = {"date": "2026-01-02T03:04:05Z", "device": "NVIDIA H200", "driver": "570.1"}
    return Session.of(toolchain(), **{**told, **fields})


@dataclass(frozen=True)
class Planned:
    """What `plan` made of the fixture's launches."""

    groups: tuple[PlannedGroup, ...]
    apart: tuple[TuningGroup, ...]


def plan(
    folder: Path,
    calls: Calls = scan,
    text: str = ONE_MODEL,
    served: Calls | None = None,
    **options: Any,
) -> Planned:
    """The groups of launches that the fixture makes by `calls`, in batches that run `served`."""
    signatures = _signatures(folder, text)
    with installed(calls), EngineProcess("vllm", H200) as process:
        groups = tuning_groups(process.trace(signatures))
    with pytest.MonkeyPatch.context() as patch:
        few_and_short(patch)
        batches = every_check(signatures)
        with installed(served or calls), EngineProcess("vllm", H200) as process:
            reached = process.trace_batches(batches)
        return Planned(*plan_groups(groups, batches, reached, **options))


def _signatures(folder: Path, text: str) -> Any:
    with installed():
        return reached_signatures(load_spec([write_spec(folder, text)]))


def tried(group: TuningGroup, configuration: Configuration) -> Tried:
    assert group.tuning is not None
    size, block = json.loads(group.tuning.tuning_key)[0], dict(configuration.constexprs)["BLOCK"]
    assert isinstance(block, int)
    return function_name(group.kernel), size, block


@dataclass
class FakeEngineMeasure:
    """Times in microseconds of each chosen candidate, 10 unless given, which add up; faults
    likewise. `timed` and `judged` are what was asked, `before` is called ahead of each."""

    times: Mapping[Tried, float] = field(default_factory=dict)
    faults: Mapping[Tried, Fault] = field(default_factory=dict)
    before: Callable[[FakeEngineMeasure], None] = lambda measure: None
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - a constant
    lost: bool = False
    choices: Mapping[TuningGroup, Configuration] = field(default_factory=dict)
    chosen: list[Tried] = field(default_factory=list)
    timed: list[tuple[Tried, ...]] = field(default_factory=list)
    judged: list[tuple[Tried, ...]] = field(default_factory=list)
    answers: dict[int, tuple[Problem, Results]] = field(default_factory=dict)

    def choose(self, choices: Mapping[TuningGroup, Configuration]) -> None:
        self.choices = dict(choices)
        self.chosen = [tried(group, one) for group, one in choices.items()]

    def results(self, batch: ServingBatch, problem: Problem) -> Results:
        self.before(self)
        self.judged.append(tuple(self.chosen))
        known = self.answers.get(id(problem))
        if known is None or known[0] is not problem:
            known = self.answers[id(problem)] = problem, problem.reference()
        wanted = known[1]
        assert wanted.states is not None
        out = wanted.out.float()
        for one in self.chosen:
            if one in self.faults:
                self.faults[one](out, len(self.judged))
        return Results(out, wanted.states.float())

    def median_us(self, batch: ServingBatch, problems: Sequence[Problem]) -> float:
        self.before(self)
        self.timed.append(tuple(self.chosen))
        return sum(self.times.get(one, 10.0) for one in self.chosen)

    def usable(self) -> bool:
        return not self.lost


def tune(
    planned: Planned,
    measure: FakeEngineMeasure,
    out: Path,
    *,
    gpu: str = "h200",
    engine: str = VERSION,
    clock: Clock | None = None,
    made_in: Session | None = None,
) -> TuneReport:
    others = {group: group.candidates[0] for group in planned.apart}
    return tune_groups(
        planned.groups, others, measure, made_in or session(), record_at(out, gpu, "vllm"), out,
        engine=engine, clock=clock,
    )  # fmt: skip


def entry_of(out: Path, planned: Planned, function: str, size: int) -> Entry:
    """The record's entry for a kernel and the size that it is tuned for."""
    (group,) = (
        one.group
        for one in planned.groups
        if tried(one.group, one.group.candidates[0])[:2] == (function, size)
    )
    found = read_record(out).entry_of(group.identity)
    assert found is not None
    return found


def block(configuration: Configuration | None) -> object:
    return None if configuration is None else dict(configuration.constexprs)["BLOCK"]


def pruned_at(*sizes: int, offset: int = 0) -> Calls:
    """Launches of `pruned` for these sizes, its input a view `offset` elements into a tensor."""
    return partial(_run_pruned, sizes, offset)


def _run_pruned(sizes: Sequence[int], offset: int, op: Any, signature: Any) -> None:
    for size in sizes:
        op.run_pruned_at(size, offset)


def few_and_short(patch: pytest.MonkeyPatch) -> None:
    """Batches that a CPU answers in milliseconds."""
    patch.setattr("ssd_aot.sources.batches.LONGEST_TOKENS", 40)
    patch.setattr("ssd_aot.tuning.workloads.MOST_SETS", 1)
    patch.setattr("ssd_aot.engines.tuning_plan.FEWEST_CHECKS", 2)
    patch.setattr("ssd_aot.engines.tuning_plan.TIMED_SHAPES", ((1, 32), (2, 64)))


def of_file(path: Path, **changes: Any) -> RecordFile:
    """The record there, its entries changed."""
    record = read_record(path)
    entries = [replace(entry, **changes) for entry in record.entries]
    return RecordFile(path, Record(record.gpu, record.source).with_entries(entries))
