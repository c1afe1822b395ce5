"""Each launch of a plan with the first of its candidates that fits its target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ssd_aot.candidates import NARROWEST
from ssd_aot.compilation.build_cache import BuildCache
from ssd_aot.compilation.compiling import (
    Compiled,
    CompileResult,
    CompileTask,
    DoesNotFit,
    Failure,
    compile_all,
)
from ssd_aot.launches import Configuration, Variant
from ssd_aot.progress import Progress
from ssd_aot.sources.builtin import kernel_reference

if TYPE_CHECKING:
    from ssd_aot.plan import Plan, PlannedLaunch

Outcome = Compiled | DoesNotFit | Failure

WEIGHTS = {"scan": 3.0, "segment_states": 2.0, "decay": 1.0, "state_passing": 1.0}
"""How long the kernels compile, relative to one another: the longest start first."""


@dataclass
class Rounds:
    """What came of each launch while its candidates were tried in order; `untried` counts those
    that were left when a build ended early."""

    compiled: dict[PlannedLaunch, Compiled]
    dropped: list[DoesNotFit]
    reasons: dict[PlannedLaunch, str]
    untried: int = 0
    fresh: int = 0
    reused: int = 0
    seconds: float = 0.0
    reproducible: bool = True

    def count(self, result: CompileResult) -> None:
        self.fresh += result.fresh
        self.reused += result.reused
        self.seconds += result.elapsed_s
        self.reproducible = self.reproducible and (result.reproducible or not result.fresh)

    def settled(self, planned: PlannedLaunch, outcomes: Sequence[Outcome]) -> bool:
        """Whether one of these outcomes, of its candidates in order, fits a launch or fails it."""
        for outcome in outcomes:
            if isinstance(outcome, Compiled):
                self.compiled[planned] = outcome
                return True
            if isinstance(outcome, Failure):
                self.reasons[planned] = outcome.reason
                return True
            self.dropped.append(outcome)
        return False

    def failures(self) -> tuple[str, ...]:
        return tuple(f"{planned}: {reason}" for planned, reason in self.reasons.items())


def compile_first_fitting(
    plan: Plan,
    jobs: int,
    cache: BuildCache,
    max_spill_bytes: int | None,
    on_progress: Callable[[Progress], None] | None,
    *,
    keep_going: bool = True,
    executor: Executor | None = None,
) -> Rounds:
    """Compile each launch with its first candidate, then those that do not fit with their next.

    The launch whose fitting is most in doubt is settled before all others; without `keep_going`
    one that no candidate fits for is the end, and what was not compiled by then is `untried`.
    With an `executor`, `jobs` compilations are handed to it at a time.
    """
    compile_tasks = partial(
        compile_all, jobs=jobs, cache=cache, on_progress=on_progress,
        max_spill_bytes=max_spill_bytes, executor=executor,
    )  # fmt: skip
    rounds = Rounds({}, [], {})
    doubtful = [planned for planned in plan.launches if _is_doubtful(planned)]
    # Of equal tiles the scan's: it holds more beside them.
    first = sorted(doubtful, key=lambda p: (_tiles_bytes(p), WEIGHTS[p.launch.kernel]))[-1:]
    others = [planned for planned in plan.launches if planned not in first]
    if _settle(rounds, first, compile_tasks, jobs, keep_going):
        _settle(rounds, others, compile_tasks, jobs, keep_going)
    rounds.untried = len(plan.launches) - len(rounds.compiled) - len(rounds.reasons)
    return rounds


def _settle(
    rounds: Rounds,
    launches: Sequence[PlannedLaunch],
    compile_tasks: Callable[[Sequence[CompileTask]], CompileResult],
    jobs: int,
    keep_going: bool,
) -> bool:
    """Try the candidates of launches until each has one or none is left; whether the build goes
    on."""
    tried = dict.fromkeys(launches, 0)
    while tried:
        # A launch in doubt gets as many of its candidates compiled as there are idle processes.
        ahead = max(1, jobs // len(tried))
        tasks = {
            planned: [
                _task(planned, configuration)
                for configuration in planned.candidates[
                    count : count + (ahead if count or _is_doubtful(planned) else 1)
                ]
            ]
            for planned, count in tried.items()
        }
        result = compile_tasks([task for made in tasks.values() for task in made])
        rounds.count(result)
        every: tuple[Outcome, ...] = (*result.compiled, *result.unfit, *result.failures)
        outcomes = {outcome.task.order: outcome for outcome in every}
        following = {}
        hopeless = False
        for planned, made in tasks.items():
            if rounds.settled(planned, [outcomes[task.order] for task in made]):
                continue
            if tried[planned] + len(made) < len(planned.candidates):
                following[planned] = tried[planned] + len(made)
            else:
                rounds.reasons[planned] = _none_fits(planned, rounds.dropped)
                hopeless = True
        if hopeless and not keep_going:
            return False
        tried = following
    return True


def _task(planned: PlannedLaunch, configuration: Configuration) -> CompileTask:
    kernel = planned.launch.kernel
    variant = Variant(planned.launch, configuration)
    return CompileTask(
        kernel_reference(kernel, variant.configuration), variant, planned.target, WEIGHTS[kernel]
    )


def _is_doubtful(planned: PlannedLaunch) -> bool:
    """Whether no candidate may fit. It decides an order, and never what is built."""
    return _tiles_bytes(planned) > planned.target.shared_bytes_optin


def _tiles_bytes(planned: PlannedLaunch) -> int:
    """Two of the narrowest tiles of states in the type of x: what the first candidate of `scan`
    takes in fp32, and more than what it takes in bf16 (compiled for sm_89, state dims 128 and
    256); 0 for a kernel that holds no tile of states."""
    dstate = dict(planned.launch.constexprs).get("DSTATE")
    if not isinstance(dstate, int):
        return 0
    types = {argument.name: argument.type for argument in planned.launch.arguments}
    columns = max(NARROWEST, 1 << (dstate - 1).bit_length())
    return 2 * NARROWEST * columns * (4 if types.get("x") == "*fp32" else 2)


def dropped_sentences(unfit: Sequence[DoesNotFit]) -> tuple[str, ...]:
    """One sentence for each kernel and target that lost candidates."""
    needs: dict[tuple[str, str, int], list[int]] = {}
    for found in unfit:
        key = found.task.variant.launch.kernel, found.task.target.name, found.limit_bytes
        needs.setdefault(key, []).append(found.needs_bytes)
    return tuple(
        f"{len(sizes)} candidates of {kernel} for {target}: they need {min(sizes)} to {max(sizes)} "
        f"bytes of shared memory, the target allows {limit}"
        for (kernel, target, limit), sizes in sorted(needs.items())
    )


def _none_fits(planned: PlannedLaunch, dropped: Sequence[DoesNotFit]) -> str:
    own = [d for d in dropped if d.task.variant.launch == planned.launch
           and d.task.target == planned.target]  # fmt: skip
    least = min(own, key=lambda found: found.needs_bytes)
    return (
        f"no candidate fits: the smallest of {len(own)} needs {least.needs_bytes} bytes of shared "
        f"memory, {planned.target.name} allows {least.limit_bytes}"
    )
