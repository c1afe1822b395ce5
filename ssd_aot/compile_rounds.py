"""Each launch of a plan with the first of its candidates that fits its target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ssd_aot.build_cache import BuildCache
from ssd_aot.compiling import Compiled, CompileTask, DoesNotFit, compile_all
from ssd_aot.launches import Variant
from ssd_aot.progress import Progress
from ssd_aot.sources.builtin import kernel_reference

if TYPE_CHECKING:
    from ssd_aot.plan import Plan, PlannedLaunch

WEIGHTS = {"scan": 3.0, "segment_states": 2.0, "decay": 1.0, "state_passing": 1.0}
"""How long the kernels compile, relative to one another: the longest start first."""


@dataclass
class Rounds:
    """What came of each launch while its candidates were tried in order."""

    compiled: dict[PlannedLaunch, Compiled]
    dropped: list[DoesNotFit]
    reasons: dict[PlannedLaunch, str]
    fresh: int = 0
    reused: int = 0
    seconds: float = 0.0
    reproducible: bool = True

    def failures(self) -> tuple[str, ...]:
        return tuple(f"{planned}: {reason}" for planned, reason in self.reasons.items())


def compile_first_fitting(
    plan: Plan,
    jobs: int,
    cache: BuildCache,
    max_spill_bytes: int | None,
    on_progress: Callable[[Progress], None] | None,
) -> Rounds:
    """Compile each launch with its first candidate, then those that do not fit with their next."""
    rounds = Rounds({}, [], {})
    pending = dict.fromkeys(plan.launches, 0)
    while pending:
        tasks = {
            planned: CompileTask(
                kernel_reference(planned.launch.kernel),
                Variant(planned.launch, planned.candidates[choice]),
                planned.target,
                WEIGHTS[planned.launch.kernel],
            )
            for planned, choice in pending.items()
        }
        result = compile_all(
            list(tasks.values()),
            jobs=jobs,
            cache=cache,
            on_progress=on_progress,
            max_spill_bytes=max_spill_bytes,
        )
        rounds.fresh += result.fresh
        rounds.reused += result.reused
        rounds.seconds += result.elapsed_s
        rounds.reproducible = rounds.reproducible and (result.reproducible or not result.fresh)
        done = {compiled.task.order: compiled for compiled in result.compiled}
        unfit = {found.task.order: found for found in result.unfit}
        failed = {failure.task.order: failure for failure in result.failures}
        following: dict[PlannedLaunch, int] = {}
        for planned, task in tasks.items():
            if task.order in done:
                rounds.compiled[planned] = done[task.order]
            elif task.order in failed:
                rounds.reasons[planned] = failed[task.order].reason
            else:
                rounds.dropped.append(unfit[task.order])
                following[planned] = pending[planned] + 1
        pending = {}
        for planned, choice in following.items():
            if choice < len(planned.candidates):
                pending[planned] = choice
            else:
                rounds.reasons[planned] = _none_fits(planned, rounds.dropped)
    return rounds


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
