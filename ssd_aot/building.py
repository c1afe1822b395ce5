"""From a spec to a bundle: plan, compile, choose, write; whole or nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ssd_aot
from ssd_aot.build_cache import BuildCache
from ssd_aot.bundle.manifest import Manifest, Source, TargetEntry, Tuning, VariantEntry
from ssd_aot.bundle.store import Bundle
from ssd_aot.bundle.writer import BundleWriter, check_destination
from ssd_aot.compiling import Compiled, CompileTask, DoesNotFit, compile_all
from ssd_aot.errors import BuildError, BundleError
from ssd_aot.launches import Variant
from ssd_aot.operation import launch_abi
from ssd_aot.progress import Progress
from ssd_aot.sources.builtin import kernel_reference, source_hashes
from ssd_aot.spec import Spec
from ssd_aot.targets import Target
from ssd_aot.triton_compat import check_ptxas, toolchain

if TYPE_CHECKING:
    from ssd_aot.plan import Plan, PlannedLaunch

WEIGHTS = {"scan": 3.0, "segment_states": 2.0, "decay": 1.0, "state_passing": 1.0}
"""How long the kernels compile, relative to one another: the longest start first."""

SHOWN_FAILURES = 5
"""How many failed launches an error spells out; the others mostly share their reasons."""


@dataclass(frozen=True)
class BuildReport:
    """What a build did. `fresh` compilations ran, `reused` came from an earlier, unfinished build;
    `unchanged` means that the bundle was there already and nothing ran. `reproducible` is false
    where this host kept ptxas from choosing the same registers each time."""

    path: Path
    manifest: Manifest
    fresh: int
    reused: int
    compile_s: float
    dropped: tuple[str, ...]
    failures: tuple[str, ...]
    unchanged: bool = False
    reproducible: bool = True

    def to_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "digest": self.manifest.digest,
            "complete": self.manifest.complete,
            "unchanged": self.unchanged,
            "reproducible": self.reproducible,
            "signatures": len(self.manifest.signatures),
            "variants": len(self.manifest.variants),
            "bytes": sum(size for _, _, size in self.manifest.files),
            "compiled": self.fresh,
            "reused": self.reused,
            "compile_s": round(self.compile_s, 2),
            "tuning": dict(Counter(e.tuning.status for e in self.manifest.variants)),
            "dropped": list(self.dropped),
            "failures": list(self.failures),
        }

    def __str__(self) -> str:
        facts = self.to_json()
        tuned = ", ".join(f"tuned: {status} ({n})" for status, n in facts["tuning"].items())
        made = (
            "nothing to do, the bundle is there"
            if self.unchanged
            else f"compiled {self.fresh}, reused {self.reused}, in {self.compile_s:.1f} s"
        )
        return "\n".join(
            (
                f"{self.path}: {'complete' if facts['complete'] else 'INCOMPLETE'}, {made}",
                f"  {facts['signatures']} signatures, {facts['variants']} variants, "
                f"{facts['bytes'] / 1e6:.1f} MB; {tuned}",
                f"  digest {facts['digest']}",
            )
        )


def build(
    spec: Spec,
    targets: Sequence[Target],
    out: Path,
    *,
    jobs: int,
    keep_going: bool = False,
    max_spill_bytes: int | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> BuildReport:
    """Build the bundle of `spec` for `targets` at `out`.

    Raises `BuildError` when a required launch has no candidate that compiles and fits, unless
    `keep_going`: then the bundle is written, marked incomplete, and names what is missing. Raises
    `UsageError` for an `out` that is there and no bundle, `HostError` for a ptxas that does not
    know a target, both before anything is compiled or written.
    """
    place, out = out, check_destination(out)
    present = _present(spec, targets, out)
    if present is not None:
        return BuildReport(place, present, 0, 0, 0.0, (), (), unchanged=True)
    for target in targets:
        check_ptxas(target)
    # Imported here: tracing needs torch, which a build with nothing to do can spare.
    from ssd_aot.plan import make_plan

    plan = make_plan(spec, targets)
    with BuildCache.beside(out) as cache:
        rounds = _compile_first_fitting(plan, jobs, cache, max_spill_bytes, on_progress)
        failures = rounds.failures()
        if failures and not keep_going:
            raise BuildError(
                f"{len(failures)} of {plan.variants} launches could not be built",
                where=str(place),
                found=_first(failures),
                wanted="a candidate of each that compiles and fits its target",
                mend="mend what is named, drop the signatures, or build with --keep-going",
            )
        manifest = _write(spec, targets, plan, rounds, out)
        cache.discard()
    return BuildReport(
        path=place,
        manifest=manifest,
        fresh=rounds.fresh,
        reused=rounds.reused,
        compile_s=rounds.seconds,
        dropped=_dropped(rounds.dropped),
        failures=failures,
        reproducible=rounds.reproducible,
    )


def _first(failures: Sequence[str]) -> str:
    more = len(failures) - SHOWN_FAILURES
    shown = [*failures[:SHOWN_FAILURES], *([f"and {more} more"] if more > 0 else [])]
    return "\n          ".join(shown)


def _present(spec: Spec, targets: Sequence[Target], out: Path) -> Manifest | None:
    """The manifest at `out` if building would make the same bundle again."""
    if not out.exists():
        return None
    try:
        bundle = Bundle.open(out)
    except BundleError:
        return None
    have = bundle.manifest
    same = (
        have.complete
        and have.spec_digest == spec.digest
        and have.source == _source()
        and have.launch_abi == launch_abi()
        and have.targets == _target_entries(targets)
        and have.toolchain == toolchain()
        and not bundle.check_files()
    )
    return have if same else None


@dataclass
class _Rounds:
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


def _compile_first_fitting(
    plan: Plan,
    jobs: int,
    cache: BuildCache,
    max_spill_bytes: int | None,
    on_progress: Callable[[Progress], None] | None,
) -> _Rounds:
    """Compile each launch with its first candidate, then those that do not fit with their next."""
    rounds = _Rounds({}, [], {})
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


def _dropped(unfit: Sequence[DoesNotFit]) -> tuple[str, ...]:
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


def _write(
    spec: Spec, targets: Sequence[Target], plan: Plan, rounds: _Rounds, out: Path
) -> Manifest:
    writer = BundleWriter(out)
    entries = []
    for planned, compiled in rounds.compiled.items():
        writer.add_object(compiled.object.cubin)
        entries.append(
            VariantEntry(
                target=planned.target.name,
                launch=planned.launch,
                configuration=compiled.task.variant.configuration,
                object=compiled.object.code,
                tuning=Tuning("pinned" if spec.pinned(planned.launch.kernel) else "default"),
                signatures=planned.signatures,
            )
        )
    manifest = Manifest(
        spec=spec.normalised(),
        spec_digest=spec.digest,
        signatures=tuple((s.id, s.to_json()) for s in plan.signatures),
        source=_source(),
        launch_abi=launch_abi(),
        toolchain=toolchain(),
        targets=_target_entries(targets),
        variants=tuple(sorted(entries, key=lambda e: (e.target, e.launch.identity))),
        missing=tuple(sorted(str(planned) for planned in rounds.reasons)),
        files=writer.files,
    )
    writer.commit(manifest)
    return manifest


def _source() -> Source:
    return Source("builtin", ssd_aot.__version__, source_hashes())


def _target_entries(targets: Sequence[Target]) -> tuple[TargetEntry, ...]:
    return tuple(
        TargetEntry(t.name, t.arch, t.capability, t.shared_bytes_optin, t.multiprocessors)
        for t in sorted(targets, key=lambda t: t.name)
    )
