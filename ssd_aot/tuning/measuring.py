"""One candidate's trial: right before fast.

A candidate runs inside its whole operation, the operation's other kernels as chosen so far. Its
results are held against the reference on every check, in outputs filled with NaN that no other
candidate has seen, and twice more for the same bits. Only then is it timed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from statistics import median
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from ssd_aot.bundle.manifest import Tuning, VariantEntry
from ssd_aot.errors import HostError, SsdAotError
from ssd_aot.launches import Configuration, Launch
from ssd_aot.layouts import Counts, Form, ScanLayout
from ssd_aot.measurement.running import judge_results
from ssd_aot.ops.execution import Executor, executing
from ssd_aot.problems import Problem, Results
from ssd_aot.tuning.compiled_candidates import CandidateLaunch
from ssd_aot.tuning.groups import Call, Member
from ssd_aot.tuning.records import Trial
from ssd_aot.tuning.workloads import Check, Workload, checks, scans_of, timed_problems, workloads

Scan = tuple[Mapping[str, Tensor], ScanLayout, Counts]
_REASON_CHARACTERS = 300

Ready = TypeVar("Ready")


class Measure(Protocol):
    """Where candidates run: a GPU, or whatever stands in for one."""

    @property
    def device(self) -> torch.device: ...

    def executor(self, form: Form, variants: Sequence[VariantEntry]) -> Executor:
        """The form's kernels, ready to run on this device."""
        ...

    def median_us(self, executor: Executor, scans: Sequence[Scan]) -> float:
        """Median device time of one of these scans, in microseconds, inputs taken in turn."""
        ...

    def usable(self) -> bool:
        """Whether the device still works: one wrong access ends it for the process."""
        ...


@dataclass(frozen=True)
class Chosen:
    """The configuration each launch runs with for now, and the code of each."""

    candidates: Mapping[Launch, CandidateLaunch]
    configurations: Mapping[Launch, Configuration]

    def variants(self, call: Call) -> list[VariantEntry]:
        entries = []
        for launch in call.launches:
            candidate, configuration = self.candidates[launch], self.configurations[launch]
            entries.append(
                VariantEntry(
                    target=candidate.planned.target.name,
                    launch=launch,
                    configuration=configuration,
                    object=candidate.code(configuration),
                    tuning=Tuning("default"),
                    signatures=(),
                )
            )
        return entries

    def with_choice(self, launch: Launch, configuration: Configuration) -> Chosen:
        return replace(self, configurations={**self.configurations, launch: configuration})

    def only(self, calls: Sequence[Call]) -> Chosen:
        """The part that these calls run with."""
        launches = dict.fromkeys(launch for call in calls for launch in call.launches)
        return Chosen(
            {launch: self.candidates[launch] for launch in launches},
            {launch: self.configurations[launch] for launch in launches},
        )


class TrialFailed(Exception):
    """A candidate that was right could not be timed again; says why."""


class CandidateTrials(Generic[Ready]):
    """Trials of candidates, each made `Ready` to run: judged first, then timed."""

    FAILURES: tuple[type[Exception], ...] = (RuntimeError, SsdAotError)
    """What a candidate that does not run may raise."""

    def run(self, configuration: Configuration) -> Trial:
        """Raises `HostError` where the device is out of memory."""
        trial = self._begun(configuration)
        try:
            ready = self._ready(configuration)
            wrong, error = self._judge(ready)
            trial = replace(trial, rejected=wrong, error=error if isfinite(error) else None)
            return trial if wrong else replace(trial, times_us=self._times(ready))
        except HostError:
            raise
        except torch.OutOfMemoryError as lack:
            raise _out_of_memory(lack) from lack
        except self.FAILURES as failure:
            return replace(trial, rejected=_did_not_run(failure))

    def time(self, configuration: Configuration) -> tuple[float, ...]:
        """The times of a candidate that was found right, measured again. Raises `TrialFailed`
        when it does not run any more, and `HostError` where the device is out of memory."""
        try:
            return self._times(self._ready(configuration))
        except HostError:
            raise
        except torch.OutOfMemoryError as lack:
            raise _out_of_memory(lack) from lack
        except self.FAILURES as failure:
            raise TrialFailed(_did_not_run(failure)) from failure

    def _begun(self, configuration: Configuration) -> Trial:
        """A trial with what is known before it is made."""
        raise NotImplementedError

    def _ready(self, configuration: Configuration) -> Ready:
        raise NotImplementedError

    def _judge(self, ready: Ready) -> tuple[str, float]:
        """What is wrong, and the largest relative error seen."""
        raise NotImplementedError

    def _times(self, ready: Ready) -> tuple[float, ...]:
        """For each workload, in microseconds."""
        raise NotImplementedError


class Trials(CandidateTrials[Mapping[Call, Executor]]):
    """Trials of one launch's candidates, its companions running as `chosen` says: inputs and
    references are made once, for all of them."""

    def __init__(
        self, member: Member, measure: Measure, multiprocessors: int, chosen: Chosen
    ) -> None:
        self._member = member
        self._measure = measure
        self._chosen = chosen
        self._workloads = workloads(member, multiprocessors)
        self._scans: dict[Workload, list[Scan]] = {}
        self._checks: list[Check] = []

    @property
    def names(self) -> tuple[str, ...]:
        """The workloads, in the order of a trial's times."""
        return tuple(workload.name for workload in self._workloads)

    def usable(self) -> bool:
        """Whether the device still works."""
        return self._measure.usable()

    def _begun(self, configuration: Configuration) -> Trial:
        code = self._member.candidates.code(configuration)
        return Trial(configuration, registers=code.registers, spill_bytes=code.spill_bytes)

    def _ready(self, configuration: Configuration) -> dict[Call, Executor]:
        chosen = self._chosen.with_choice(self._member.launch, configuration)
        return {
            call: self._measure.executor(call.form, chosen.variants(call))
            for call in self._member.calls
        }

    def _judge(self, ready: Mapping[Call, Executor]) -> tuple[str, float]:
        if not self._checks:
            self._checks = checks(self._member, self._measure.device)

        def run(check: Check) -> Results:
            with executing(ready[check.call]):
                return check.call.run(check.problem)

        return judge_all(self._checks, run)

    def _times(self, ready: Mapping[Call, Executor]) -> tuple[float, ...]:
        times = []
        for workload in self._workloads:
            if workload not in self._scans:
                problems = timed_problems(workload, self._measure.device)
                self._scans[workload] = scans_of(workload.call, problems).kept
            executor = ready[workload.call]
            times.append(round(self._measure.median_us(executor, self._scans[workload]), 3))
        return tuple(times)


class Judged(Protocol):
    """A problem with the reference's answer."""

    @property
    def problem(self) -> Problem: ...

    @property
    def wanted(self) -> Results: ...


AnyCheck = TypeVar("AnyCheck", bound=Judged)


def judge_all(checks: Sequence[AnyCheck], run: Callable[[AnyCheck], Results]) -> tuple[str, float]:
    """Each check run three times, until one is wrong: what is, and the largest relative error."""
    largest = 0.0
    for check in checks:
        first, *again = [run(check) for _ in range(3)]
        for second in again:
            judgement = judge_results(check.problem, check.wanted, first, second)
            errors = (judgement.out_error, judgement.state_error)
            # A NaN in either stays: max() would pass over it.
            largest = sum(errors) if not all(map(isfinite, errors)) else max(largest, *errors)
            if judgement.wrong:
                return f"{judgement.wrong} at lengths {check.problem.lengths}", largest
    return "", largest


def settle(trial: Trial, more: Sequence[tuple[float, ...]]) -> Trial:
    """The trial with the median of all its measurements for each workload."""
    columns = zip(trial.times_us, *more, strict=True)
    times = tuple(round(median(column), 3) for column in columns)
    return replace(trial, times_us=times, repeats=trial.repeats + len(more))


def _did_not_run(failure: Exception) -> str:
    return f"did not run: {' '.join(str(failure).split())[:_REASON_CHARACTERS]}"


def _out_of_memory(error: Exception) -> HostError:
    return HostError(
        "the GPU has too little free memory to measure",
        where="tune",
        found=" ".join(str(error).split())[:_REASON_CHARACTERS],
        wanted="a GPU that nothing else uses",
        mend="end what else uses the GPU and run again: what was measured is kept",
    )
