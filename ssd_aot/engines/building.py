"""From a spec to a bundle of an engine's own kernels, ready before Triton asks for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ssd_aot.build_report import BuildReport
from ssd_aot.bundle.writer import check_destination, digest_there
from ssd_aot.compilation.build_cache import BuildCache
from ssd_aot.engines.bundling import BuiltTarget, write_bundle
from ssd_aot.engines.engine import require_installed
from ssd_aot.engines.groups import TuningGroup, check_group_pins, tuning_groups
from ssd_aot.engines.process import EngineProcess
from ssd_aot.engines.reaching import reached_signatures
from ssd_aot.engines.recorded import as_recorded
from ssd_aot.engines.rounds import compile_groups
from ssd_aot.engines.tracing import TracedLaunch
from ssd_aot.errors import BuildError, SpecError, listed
from ssd_aot.spec import Spec
from ssd_aot.targets import Target
from ssd_aot.triton_compat import check_ptxas, toolchain
from ssd_aot.tuning.choices import Choice, Chooser, RecordFile, refuse_untuned


def build_engine(
    spec: Spec,
    targets: Sequence[Target],
    out: Path,
    *,
    jobs: int,
    keep_going: bool = False,
    max_spill_bytes: int | None = None,
    records: Sequence[RecordFile] = (),
    require_tuned: bool = False,
    tune_at_serve: bool = False,
    show_progress: bool = False,
) -> BuildReport:
    """Build the bundle of `spec`, whose source is an engine or a recording, for `targets` at `out`.

    Each autotuned kernel is there in the configuration that a record or, without one, the engine's
    own order chooses, with a tuning result that names it; with `tune_at_serve` in all of them and
    without results. Raises as `building.build`, and `HostError` where the engine is not installed.
    """
    recording = spec.recording
    if recording is not None and not recording.launches:
        raise SpecError(
            "the recording holds no launch",
            where=spec.place("source"),
            found="0 launches, as of a program that ran no Triton kernel",
            wanted="what the program compiled or loaded while it served",
            mend="record it while it serves requests of every kind",
        )
    version = "" if recording else require_installed(spec.source, spec.place("source"))
    _check_one_model_an_architecture(targets)
    place, out = out, check_destination(out)
    before = digest_there(out)
    for target in targets:
        check_ptxas(target)
    signatures = () if recording else reached_signatures(spec)
    parts = []
    notes = {f"left out: {kernel}: {why}": None for kernel, why in left_out(spec)}
    with BuildCache.beside(out) as cache:
        folder = cache.folder
    for target in sorted(targets, key=lambda t: t.name):
        with EngineProcess(spec.source, target) as process:
            traced = process.trace_recording(recording) if recording else process.trace(signatures)
            choices = choose(spec, target, traced, records, version)
            if require_tuned:
                refuse_untuned(
                    [
                        (str(group), found[0].tuning)
                        for group, found in choices.items()
                        if len(group.candidates) > 1
                    ]
                )
            compile_tasks = partial(
                process.compile, cache=folder, jobs=jobs, max_spill_bytes=max_spill_bytes,
                show_progress=show_progress,
            )  # fmt: skip
            rounds = compile_groups(choices, target, compile_tasks, every_candidate=tune_at_serve)
        parts.append(BuiltTarget(target, traced, rounds))
        notes.update(dict.fromkeys(
            f"{group.kernel} is tuned at its first launch in each process: {group.tuning.reason}"
            for group in choices if group.tuning is not None and group.tuned_at_serve
        ))  # fmt: skip
    failures = tuple(name for part in parts for name in part.rounds.failures)
    if failures and not keep_going:
        raise BuildError(
            f"{len(failures)} launches could not be built",
            where=str(place),
            found=listed(failures),
            wanted="a candidate of each that compiles and fits its target",
            mend="mend what is named, drop the signatures, or build with --keep-going",
        )
    manifest, unchanged = write_bundle(
        spec, version, signatures, parts, out, failures, tune_at_serve
    )
    with BuildCache.beside(out) as cache:
        cache.discard()
    every = [part.rounds for part in parts]
    return BuildReport(
        path=place,
        manifest=manifest,
        fresh=sum(rounds.fresh for rounds in every),
        reused=sum(rounds.reused for rounds in every),
        compile_s=sum(rounds.seconds for rounds in every),
        dropped=tuple(name for rounds in every for name in rounds.dropped),
        failures=failures,
        unchanged=unchanged,
        reproducible=all(rounds.reproducible for rounds in every),
        records=tuple(sorted(Counter(
            str(one.choice.origin) for rounds in every for one in rounds.built if one.choice.origin
        ).items())),
        notes=tuple(notes),
        before=before,
    )  # fmt: skip


def choose(
    spec: Spec,
    target: Target,
    traced: Sequence[TracedLaunch],
    records: Sequence[RecordFile],
    version: str,
) -> dict[TuningGroup, tuple[Choice, ...]]:
    """Each group with its candidates in the order they are to be tried; `version` is the engine's,
    empty for a recording."""
    sources = {t.captured.launch.kernel: t.captured.source_sha256 for t in traced}
    chooser = Chooser(tuple(records), toolchain(), tuple(sorted(sources.items())), version or None)
    groups = tuning_groups(traced)
    check_group_pins(spec, groups)
    choices = {group: group.choose(spec, target, chooser) for group in groups}
    return as_recorded(choices, spec.recording, target) if spec.recording else choices


def left_out(spec: Spec) -> tuple[tuple[str, str], ...]:
    """The kernels of a recording that cannot be built from it, and why."""
    return spec.recording.left_out if spec.recording else ()


def _check_one_model_an_architecture(targets: Sequence[Target]) -> None:
    """Triton's keys name the architecture and not the GPU, so two models of one would answer for
    each other's tuning."""
    by_arch: dict[str, Target] = {}
    for target in targets:
        other = by_arch.setdefault(target.arch, target)
        if other != target:
            raise SpecError(
                "a bundle of engine kernels holds one GPU model an architecture",
                where="targets",
                found=f"{other.name} and {target.name}, both {target.arch}",
                wanted="one of them",
                mend="build a bundle for each",
            )
