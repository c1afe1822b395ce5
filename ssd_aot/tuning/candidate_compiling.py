"""A plan's candidates to code, all of them, before anything is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

from ssd_aot.compilation.build_cache import BuildCache
from ssd_aot.compilation.compile_rounds import WEIGHTS
from ssd_aot.compilation.compiling import CompileTask, compile_all
from ssd_aot.launches import Configuration, Launch, Variant
from ssd_aot.plan import PlannedLaunch, make_plan
from ssd_aot.progress import Progress
from ssd_aot.signatures import Signature
from ssd_aot.sources.builtin import kernel_reference, kernel_sources
from ssd_aot.spec import Spec
from ssd_aot.targets import Target
from ssd_aot.tuning.compiled_candidates import (
    CandidateLaunch,
    CompiledCandidate,
    CompiledCandidates,
)

_SETTLED = "not compiled: its launch is settled"


def compile_spec(
    spec: Spec,
    target: Target,
    out: Path,
    *,
    jobs: int,
    executor: Executor | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> CompiledCandidates:
    """Every candidate of a spec's launches for one target.

    Pins are passed over: they say what a build takes, not what is worth knowing. What is compiled
    stays beside `out` until all is, so that a killed run goes on where it was. With an `executor`,
    `jobs` compilations are handed to it at a time.
    """
    plan = make_plan(replace(spec, pin=()), [target])
    return compile_candidates(
        plan.signatures, plan.launches, target, out, jobs=jobs, executor=executor,
        on_progress=on_progress,
    )  # fmt: skip


def compile_candidates(
    signatures: Sequence[Signature],
    launches: Sequence[PlannedLaunch],
    target: Target,
    out: Path,
    *,
    jobs: int,
    executor: Executor | None = None,
    settled: Mapping[Launch, Configuration] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> CompiledCandidates:
    """As `compile_spec`, for launches planned already; of a `settled` one its winner alone."""
    winners = settled or {}
    tasks = [
        _task(planned, configuration)
        for planned in launches
        for configuration in planned.candidates
        if winners.get(planned.launch, configuration) == configuration
    ]
    with BuildCache.beside(out) as cache:
        result = compile_all(
            tasks, jobs=jobs, cache=cache, on_progress=on_progress, executor=executor
        )
        cache.discard()
    objects = {done.task.order: done.object for done in result.compiled}
    reasons = {failure.task.order: failure.reason for failure in result.failures}
    for unfit in result.unfit:
        reasons[unfit.task.order] = (
            f"needs {unfit.needs_bytes} bytes of shared memory, "
            f"{target.name} allows {unfit.limit_bytes}"
        )
    cubins: dict[str, bytes] = {}
    entries = []
    for planned in launches:
        compiled = []
        for configuration in planned.candidates:
            order = _task(planned, configuration).order
            made = objects.get(order)
            if made is not None:
                cubins[made.code.sha256] = made.cubin
            code = made.code if made else None
            compiled.append(
                CompiledCandidate(configuration, code, "" if code else reasons.get(order, _SETTLED))
            )
        entries.append(CandidateLaunch(planned, tuple(compiled)))
    return CompiledCandidates(
        target=target,
        toolchain=result.toolchain,
        sources=kernel_sources(),
        signatures=tuple(signatures),
        launches=tuple(entries),
        cubins=cubins,
    )


def _task(planned: PlannedLaunch, configuration: Configuration) -> CompileTask:
    kernel = planned.launch.kernel
    variant = Variant(planned.launch, configuration)
    return CompileTask(
        kernel_reference(kernel, variant.configuration), variant, planned.target, WEIGHTS[kernel]
    )
