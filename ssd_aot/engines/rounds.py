"""Each group of launches with the first of its candidates that compiles and fits for all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ssd_aot.compilation.compiling import Compiled, CompileResult, CompileTask
from ssd_aot.engines.groups import TuningGroup
from ssd_aot.engines.tracing import TracedLaunch
from ssd_aot.launches import Variant
from ssd_aot.targets import Target
from ssd_aot.triton_compat import CapturedCandidate
from ssd_aot.tuning.choices import Choice

Compile = Callable[[Sequence[CompileTask]], CompileResult]


@dataclass(frozen=True)
class Built:
    """One launch of a group with a configuration and its code."""

    group: TuningGroup
    traced: TracedLaunch
    choice: Choice
    compiled: Compiled

    @property
    def candidate(self) -> CapturedCandidate:
        """The candidate that was built, with Triton's keys for it."""
        return chosen(self.traced, self.choice)


@dataclass
class EngineRounds:
    """What came of each group while its candidates were tried in order.

    `refused` are candidates whose code a tuner at serve time has to find, to see that it does not
    fit.
    """

    built: list[Built] = field(default_factory=list)
    refused: list[Built] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    fresh: int = 0
    reused: int = 0
    seconds: float = 0.0
    reproducible: bool = True

    def run(self, compile_tasks: Compile, tasks: Sequence[CompileTask]) -> _Outcomes:
        result = compile_tasks(tasks)
        self.fresh += result.fresh
        self.reused += result.reused
        self.seconds += result.elapsed_s
        self.reproducible = self.reproducible and (result.reproducible or not result.fresh)
        reasons = {failure.task.order: failure.reason for failure in result.failures}
        compiled = {one.task.order: one for one in result.compiled}
        for unfit in result.unfit:
            reasons[unfit.task.order] = (
                f"needs {unfit.needs_bytes} bytes of shared memory, "
                f"{unfit.task.target.name} allows {unfit.limit_bytes}"
            )
            if unfit.object is not None:
                compiled[unfit.task.order] = Compiled(unfit.task, unfit.object)
        return _Outcomes(compiled, reasons)


@dataclass(frozen=True)
class _Outcomes:
    """Code by task, also where it does not fit, and why a task cannot be launched."""

    compiled: Mapping[tuple[str, str], Compiled]
    reasons: Mapping[tuple[str, str], str]


def compile_groups(
    choices: Mapping[TuningGroup, tuple[Choice, ...]],
    target: Target,
    compile_tasks: Compile,
    *,
    every_candidate: bool = False,
) -> EngineRounds:
    """Compile each group with its choice, and with the next where one of its launches fails so.

    Triton passes over a candidate that does not compile or fit, and so does this. All candidates
    are kept, for tuning at serve time, with `every_candidate` and of a group whose tuning Triton
    cannot store.
    """
    rounds = EngineRounds()
    pending = dict.fromkeys(choices, 0)
    while pending:
        tasks = {
            (group, place): _tasks(group, choices[group][place], target)
            for group, first in pending.items()
            for place in (
                range(len(choices[group])) if every_candidate or group.tuned_at_serve else (first,)
            )
        }
        outcomes = rounds.run(compile_tasks, [t for made in tasks.values() for t in made.values()])
        settled: set[TuningGroup] = set()
        reasons: dict[TuningGroup, str] = {}
        following: dict[TuningGroup, int] = {}
        for (group, place), made in tasks.items():
            choice = choices[group][place]
            reason = _first_reason(made.values(), outcomes)
            built = [
                Built(group, traced, choice, outcomes.compiled[task.order])
                for traced, task in made.items()
                if task.order in outcomes.compiled
            ]
            if not reason:
                rounds.built += built
                settled.add(group)
                continue
            reasons[group] = reason
            rounds.dropped.append(f"{group.kernel} [{choice.configuration}]: {reason}")
            if every_candidate or group.tuned_at_serve:
                rounds.refused += built
            elif place + 1 < len(choices[group]):
                following[group] = place + 1
        rounds.failures += [
            f"{group.launches[0].captured.launch}: {reason}"
            for group, reason in reasons.items()
            if group not in settled and group not in following
        ]
        pending = following
    return rounds


def _tasks(group: TuningGroup, choice: Choice, target: Target) -> dict[TracedLaunch, CompileTask]:
    """A task for each launch of the group; code that differs in nothing is compiled once."""
    made = {}
    for traced in group.launches:
        captured = traced.captured
        made[traced] = CompileTask(
            captured.launch.kernel,
            Variant(captured.launch, choice.configuration),
            target,
            weight=float(len(captured.candidates)),
            source_sha256=captured.source_sha256,
            triton_key=chosen(traced, choice).key,
        )
    return made


def chosen(traced: TracedLaunch, choice: Choice) -> CapturedCandidate:
    """The launch's candidate of the configuration that was chosen."""
    candidates = traced.captured.candidates
    return next(c for c in candidates if c.configuration == choice.configuration)


def _first_reason(tasks: Iterable[CompileTask], outcomes: _Outcomes) -> str:
    return next((outcomes.reasons[t.order] for t in tasks if t.order in outcomes.reasons), "")
