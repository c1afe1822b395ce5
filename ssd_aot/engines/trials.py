"""Trials of the candidates of one group of an engine's launches, in the engine's own operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from ssd_aot.engines.groups import TuningGroup
from ssd_aot.engines.serving_calls import ServingBatch
from ssd_aot.engines.tuning_plan import PlannedGroup
from ssd_aot.errors import HostError
from ssd_aot.launches import Configuration
from ssd_aot.problems import Problem, Results
from ssd_aot.triton_compat.forcing import REFUSALS
from ssd_aot.tuning.measuring import CandidateTrials, judge_all
from ssd_aot.tuning.records import Trial
from ssd_aot.tuning.workloads import rotated_problems


class EngineMeasure(Protocol):
    """Where an engine's operation runs: on a GPU, or on whatever stands in for one."""

    @property
    def device(self) -> torch.device: ...

    def choose(self, choices: Mapping[TuningGroup, Configuration]) -> None:
        """From here on the tuners of these groups make these choices."""
        ...

    def results(self, batch: ServingBatch, problem: Problem) -> Results:
        """The operation on a batch, in memory that was filled with NaN."""
        ...

    def median_us(self, batch: ServingBatch, problems: Sequence[Problem]) -> float:
        """Median device time of one call, in microseconds, the problems taken in turn."""
        ...

    def usable(self) -> bool:
        """Whether the device still works: one wrong access ends it for the process."""
        ...


@dataclass(frozen=True)
class BatchCheck:
    """A batch with its problem and the reference's answer."""

    batch: ServingBatch
    problem: Problem
    wanted: Results


class GroupTrials(CandidateTrials[None]):
    """One group's, the other groups being as `chosen` says: inputs and references are made once,
    for all its candidates."""

    FAILURES = (*CandidateTrials.FAILURES, *REFUSALS)

    def __init__(
        self,
        planned: PlannedGroup,
        measure: EngineMeasure,
        chosen: Mapping[TuningGroup, Configuration],
    ) -> None:
        self._planned = planned
        self._measure = measure
        self._chosen = chosen
        self._checks: list[BatchCheck] = []
        self._problems: dict[ServingBatch, list[Problem]] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The timed batches, in the order of a trial's times."""
        return tuple(batch.name for batch in self._planned.timed)

    def usable(self) -> bool:
        """Whether the device still works."""
        return self._measure.usable()

    def right(self, configuration: Configuration) -> bool:
        """Whether the operation is right with a candidate; judged, and not timed."""
        try:
            self._ready(configuration)
            return not self._judge(None)[0]
        except HostError:
            raise
        except self.FAILURES:
            return False

    def with_others(self, chosen: Mapping[TuningGroup, Configuration]) -> GroupTrials:
        """The same with the other groups as given, and the inputs and references there are."""
        other = GroupTrials(self._planned, self._measure, chosen)
        other._checks, other._problems = self._checks, self._problems
        return other

    def _begun(self, configuration: Configuration) -> Trial:
        one = next(u for u in self._planned.usable if u.configuration == configuration)
        return Trial(configuration, registers=one.registers, spill_bytes=one.spill_bytes)

    def _ready(self, configuration: Configuration) -> None:
        self._measure.choose({**self._chosen, self._planned.group: configuration})

    def _judge(self, ready: None) -> tuple[str, float]:
        if not self._checks:
            for batch in self._planned.checks:
                problem = batch.problem(self._measure.device)
                self._checks.append(BatchCheck(batch, problem, problem.reference()))
        return judge_all(self._checks, lambda c: self._measure.results(c.batch, c.problem))

    def _times(self, ready: None) -> tuple[float, ...]:
        return tuple(round(self._time(batch), 3) for batch in self._planned.timed)

    def _time(self, batch: ServingBatch) -> float:
        if batch not in self._problems:
            self._problems[batch] = rotated_problems(
                batch.signature, batch.lengths, self._measure.device
            )
        return self._measure.median_us(batch, self._problems[batch])
