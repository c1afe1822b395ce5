"""Tuning an engine's kernels on a GPU here: traced, compiled in parallel, then measured in a
process of its own, which is started again where a candidate ends it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ssd_aot.bundle.manifest import VariantEntry
from ssd_aot.bundle.store import Bundle
from ssd_aot.compilation.calling import Worker, WorkerGone
from ssd_aot.compilation.spawning import SpawnedWorker
from ssd_aot.engines.building import build_engine
from ssd_aot.engines.device_measuring import EngineDevice
from ssd_aot.engines.engine import ENGINES, require_installed
from ssd_aot.engines.groups import TuningGroup, tuning_groups
from ssd_aot.engines.process import EngineProcess
from ssd_aot.engines.tuner import tune_groups
from ssd_aot.engines.tuning_plan import PlannedGroup, every_check, plan_groups
from ssd_aot.errors import BundleError, HostError, UsageError
from ssd_aot.launches import Configuration
from ssd_aot.progress import ProgressPrinter
from ssd_aot.signatures import Signature
from ssd_aot.spec import Spec
from ssd_aot.targets import Target
from ssd_aot.targets import target as target_named
from ssd_aot.terminal import Level, level, speaking
from ssd_aot.triton_compat import same_toolchain, toolchain
from ssd_aot.tuning.attempts import Clock, DeviceLost
from ssd_aot.tuning.device_measuring import check_device, driver_version
from ssd_aot.tuning.host import gpus_here
from ssd_aot.tuning.record_text import record_at
from ssd_aot.tuning.records import Session
from ssd_aot.tuning.tune_report import TuneReport
from ssd_aot.tuning.tuner import now

ATTEMPTS = 2
"""A process that ends may have been killed from outside: what it did is tried once more."""


@dataclass(frozen=True)
class EngineTuning:
    """What is to be measured for one source and target; see `tuner.tune_groups`.

    `candidates` is the bundle with the code of all candidates.
    """

    source: str
    engine: str
    target: Target
    planned: tuple[PlannedGroup, ...]
    others: tuple[tuple[TuningGroup, Configuration], ...]
    candidates: Path


def compile_candidates(spec: Spec, target: Target, out: Path, *, jobs: int) -> Mapping[str, str]:
    """A bundle of all candidates of the spec's engine at `out`, unless it is there; why others are
    not in it, by "KERNEL [CONFIGURATION]". Pins are passed over.

    Raises as `build_engine` and `require_measured`.
    """
    spec = replace(spec, pin=())
    require_measured(spec.source, spec.place("source"))
    if _is_there(spec, target, out):
        return {}
    report = build_engine(
        spec, [target], out, jobs=jobs, keep_going=True, tune_at_serve=True,
        show_progress=level() > Level.QUIET,
    )  # fmt: skip
    named = (sentence.partition("]: ") for sentence in report.dropped)
    return {f"{name}]": reason for name, _, reason in named}


def prepare_tuning(
    candidates: Path, reasons: Mapping[str, str] | None = None
) -> tuple[EngineTuning, tuple[str, ...]]:
    """What there is to be measured of a bundle with all candidates, and notices of what cannot be;
    touches no GPU.

    Raises `HostError` where the engine is not installed, `UsageError` for a source that is
    none or that has another version than the bundle's, and `BundleError` for what is no such
    bundle.
    """
    manifest = Bundle.open(candidates).manifest
    source, version = manifest.source.name, manifest.source.version
    found = require_measured(source, str(candidates))
    if found != version or manifest.triton is None or manifest.triton.tunings:
        raise UsageError(
            "these are not the candidates of the engine here",
            where=str(candidates),
            found=f"{source} {version}" + (", with choices made" if version == found else ""),
            wanted=f"all candidates of {source} {found}",
            mend="build with --tune-at-serve in this environment",
        )
    signatures = tuple(Signature.from_json(fields) for _, fields in manifest.signatures)
    target = target_named(manifest.targets[0].name, str(candidates))
    with EngineProcess(source, target) as process:
        groups = tuning_groups(process.trace(signatures))
    batches = every_check(signatures)
    with EngineProcess(source, target) as process:
        reached = process.trace_batches(batches)
    built: dict[str, list[VariantEntry]] = {}
    for entry in manifest.variants:
        if entry.target == target.name:
            built.setdefault(entry.launch.identity, []).append(entry)
    planned, apart = plan_groups(groups, batches, reached, built, reasons)
    here = {one.group for one in planned}
    others = tuple((g, g.candidates[0]) for g in groups if g.identity and g not in here)
    notices = tuple(f"not measured, for no batch reaches it or none fits: {g}" for g in apart)
    tuning = EngineTuning(source, version, target, planned, others, candidates.absolute())
    return tuning, notices


def require_measured(source: str, where: str) -> str:
    """The version of an engine. Raises `UsageError` for a source that is none, `HostError` where it
    is not installed."""
    if source not in ENGINES:
        raise UsageError(
            "kernels of this source cannot be tuned",
            where=where,
            found=source,
            wanted=", ".join(("builtin", *ENGINES)),
            mend="build them in the engine's own order, or with --tune-at-serve",
        )
    return require_installed(source, where)


def measure_on_gpu(
    tuning: EngineTuning,
    out: Path,
    *,
    devices: Sequence[int] = (),
    budget_s: float | None = None,
    on_notice: Callable[[str], None] = lambda text: None,
    hire: Callable[[str], Worker] | None = None,
) -> TuneReport:
    """Measure in a process of its own, a `SpawnedWorker` unless `hire` starts another, and write,
    or extend, the record at `out`.

    A candidate that ends the process's context is rejected, and another process goes on. Raises
    `HostError` where there is no such GPU, and where the process ends again and again.
    """
    record_at(out, tuning.target.name, tuning.source)
    clock, date, index = Clock(budget_s), now(), _index(tuning.target, devices)
    ended = 0
    while True:
        left_s = None if budget_s is None else max(0.0, budget_s - clock.elapsed_s)
        worker = (hire or SpawnedWorker)(f"GPU {index}")
        try:
            report: TuneReport = worker.call(
                measure_here, tuning, out.absolute(), date, index, left_s, level()
            )
            return replace(report, path=out, elapsed_s=clock.elapsed_s)
        except DeviceLost as lost:
            on_notice(f"out: {lost.where}: {lost.found}; another process goes on")
        except WorkerGone as gone:
            ended += 1
            if ended == ATTEMPTS:
                raise HostError(
                    "the process that measures ended again and again",
                    where="tune",
                    found=str(gone),
                    mend="run again: what was measured is kept",
                ) from gone
            on_notice(f"{gone}; another process goes on")
        finally:
            worker.close()


def measure_here(
    tuning: EngineTuning, out: Path, date: str, index: int, budget_s: float | None, said: Level
) -> TuneReport:
    """Measure in this process, which has imported no engine and is used for nothing else."""
    device = EngineDevice(tuning.source, tuning.target, index, tuning.candidates)
    session = Session.of(toolchain(), date=date, device=device.name, driver=driver_version())
    with speaking(said):
        return tune_groups(
            tuning.planned, dict(tuning.others), device, session,
            record_at(out, tuning.target.name, tuning.source), out, engine=tuning.engine,
            clock=Clock(budget_s), on_progress=ProgressPrinter(),
        )  # fmt: skip


def check_gpu(target: Target, devices: Sequence[int]) -> None:
    """Raises `HostError` where the GPU that would measure is another one, or none."""
    check_device(target, _index(target, devices))


def _index(target: Target, devices: Sequence[int]) -> int:
    """The GPU that is named, else the first of the model here, else the first."""
    return next(iter(devices), next(iter(gpus_here(target)), 0))


def candidate_facts(candidates: Path) -> dict[str, Any]:
    """What a bundle of candidates holds, for a command to print."""
    variants = Bundle.open(candidates).manifest.variants
    launches = {entry.launch.identity for entry in variants}
    return {"path": str(candidates), "launches": len(launches), "candidates": len(variants)}


def discard_candidates(tuning: EngineTuning) -> None:
    """Once nothing is left to be measured."""
    shutil.rmtree(tuning.candidates, ignore_errors=True)


def _is_there(spec: Spec, target: Target, out: Path) -> bool:
    """Whether a run that was killed has compiled all this before."""
    if not out.exists():
        return False
    try:
        manifest = Bundle.open(out).manifest
    except BundleError:
        return False
    return (
        manifest.spec_digest == spec.digest
        and [entry.name for entry in manifest.targets] == [target.name]
        and manifest.source.name == spec.source
        and manifest.source.version == require_installed(spec.source, spec.place("source"))
        and manifest.triton is not None
        and not manifest.triton.tunings
        and not same_toolchain(toolchain(of_engine=True), manifest.toolchain)
    )
