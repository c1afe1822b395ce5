"""From a spec to a bundle: plan, compile, choose, write; whole or nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import ssd_aot
from ssd_aot.build_report import BuildReport
from ssd_aot.bundle.manifest import Manifest, Needs, Source, TargetEntry, Tuning, VariantEntry
from ssd_aot.bundle.store import Bundle
from ssd_aot.bundle.writer import BundleWriter, check_destination, digest_there
from ssd_aot.candidates import candidates
from ssd_aot.compilation.build_cache import BuildCache
from ssd_aot.compilation.compile_rounds import Rounds, compile_first_fitting, dropped_sentences
from ssd_aot.errors import SHOWN, BuildError, BundleError, listed
from ssd_aot.operation import launch_abi
from ssd_aot.progress import Progress
from ssd_aot.sources.builtin import kernel_sources, source_hashes
from ssd_aot.spec import Spec
from ssd_aot.targets import Target
from ssd_aot.targets import target as target_named
from ssd_aot.triton_compat import check_ptxas, toolchain
from ssd_aot.tuning.choices import Choice, Chooser, RecordFile, refuse_untuned

if TYPE_CHECKING:
    from ssd_aot.plan import Plan, PlannedLaunch


def build(
    spec: Spec,
    targets: Sequence[Target],
    out: Path,
    *,
    jobs: int,
    keep_going: bool = False,
    max_spill_bytes: int | None = None,
    records: Sequence[RecordFile] = (),
    require_tuned: bool = False,
    executor: Executor | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> BuildReport:
    """Build the bundle of `spec` for `targets` at `out`, its configurations chosen by `records`.

    With an `executor`, `jobs` compilations are handed to it at a time; the bundle is the same.

    Raises `BuildError` when a choice was not measured under `require_tuned`, or when a required
    launch has no candidate that compiles and fits, unless
    `keep_going`: then the bundle is written, marked incomplete, and names what is missing. Raises
    `UsageError` for an `out` that is there and no bundle, `HostError` for a ptxas that does not
    know a target, both before anything is compiled or written.
    """
    place, out = out, check_destination(out)
    chooser = Chooser(tuple(records), toolchain(), kernel_sources())
    present = _present(spec, targets, out, chooser)
    if present is not None:
        if require_tuned:
            refuse_untuned([(entry.name, entry.tuning) for entry in present.variants])
        return BuildReport(place, present, 0, 0, 0.0, (), (), unchanged=True)
    before = digest_there(out)
    for target in targets:
        check_ptxas(target)
    # Imported here: tracing needs torch, which a build with nothing to do can spare.
    from ssd_aot.plan import make_plan

    rules = {target.name: chooser.form_rule(target) for target in targets}
    plan = make_plan(spec, targets, rules)
    choices = choose_all(spec, plan, chooser)
    if require_tuned:
        refuse_untuned([(str(planned), choice.tuning) for planned, choice in choices.items()])
    plan = replace(plan, launches=tuple(choices))
    with BuildCache.beside(out) as cache:
        rounds = compile_first_fitting(
            plan, jobs, cache, max_spill_bytes, on_progress, keep_going=keep_going,
            executor=executor,
        )  # fmt: skip
        failures = rounds.failures()
        if failures and not keep_going:
            raise BuildError(
                f"{len(failures)} of {plan.variants} launches could not be built",
                where=str(place),
                found=_first(failures, rounds.untried),
                wanted="a candidate of each that compiles and fits its target",
                mend="mend what is named, drop the signatures, or build with --keep-going",
                more=failures[SHOWN:],
            )
        manifest = _write(spec, _target_entries(targets, chooser), plan, choices, rounds, out)
        cache.discard()
    return BuildReport(
        path=place,
        manifest=manifest,
        fresh=rounds.fresh,
        reused=rounds.reused,
        compile_s=rounds.seconds,
        dropped=dropped_sentences(rounds.dropped),
        failures=failures,
        reproducible=rounds.reproducible,
        records=_origins(choices.values()),
        before=before,
    )


def choose_all(spec: Spec, plan: Plan, chooser: Chooser) -> dict[PlannedLaunch, Choice]:
    """Each launch of the plan, its choice moved to the front of its candidates, with the choice."""
    choices = {}
    for planned in plan.launches:
        choice = chooser.choose(
            planned.launch, planned.target, planned.candidates,
            pinned=bool(spec.pinned(planned.launch.kernel)),
        )  # fmt: skip
        others = tuple(c for c in planned.candidates if c != choice.configuration)
        choices[replace(planned, candidates=(choice.configuration, *others))] = choice
    return choices


def _origins(choices: Iterable[Choice]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted(Counter(str(c.origin) for c in choices if c.origin).items()))


def _first(failures: Sequence[str], untried: int) -> str:
    untold = [f"and {untried} not tried to the end"] if untried else []
    return "\n          ".join([listed(failures), *untold])


def _present(spec: Spec, targets: Sequence[Target], out: Path, chooser: Chooser) -> Manifest | None:
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
        and have.targets == _target_entries(targets, chooser)
        and have.toolchain == toolchain()
        and all(_still_chosen(spec, entry, chooser) for entry in have.variants)
        and not bundle.check_files()
    )
    return have if same else None


def _still_chosen(spec: Spec, entry: VariantEntry, chooser: Chooser) -> bool:
    """Whether the records there are now choose as they did. A pin is part of the spec's digest,
    and which default fits part of the toolchain's."""
    if spec.pinned(entry.launch.kernel):
        return True
    gpu = target_named(entry.target)
    choice = chooser.choose(entry.launch, gpu, candidates(entry.launch, gpu))
    if choice.tuning != entry.tuning:
        return False
    return choice.tuning.status == "default" or choice.configuration == entry.configuration


def _write(
    spec: Spec,
    targets: tuple[TargetEntry, ...],
    plan: Plan,
    choices: Mapping[PlannedLaunch, Choice],
    rounds: Rounds,
    out: Path,
) -> Manifest:
    writer = BundleWriter(out)
    entries = []
    for planned, compiled in rounds.compiled.items():
        writer.add_object(compiled.object.cubin)
        configuration, choice = compiled.task.variant.configuration, choices[planned]
        # Where the choice does not fit, the next candidate is nothing but a default.
        taken = configuration == choice.configuration or choice.tuning.status == "pinned"
        entries.append(
            VariantEntry(
                target=planned.target.name,
                launch=planned.launch,
                configuration=configuration,
                object=compiled.object.code,
                tuning=choice.tuning if taken else Tuning("default"),
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
        targets=targets,
        variants=tuple(sorted(entries, key=lambda e: (e.target, e.launch.identity))),
        missing=tuple(sorted(str(planned) for planned in rounds.reasons)),
        files=writer.files,
        needs=Needs.of((p.target.name, p.launch, p.signatures) for p in plan.launches),
    )
    writer.commit(manifest)
    return manifest


def _source() -> Source:
    return Source("builtin", ssd_aot.__version__, source_hashes())


def _target_entries(targets: Sequence[Target], chooser: Chooser) -> tuple[TargetEntry, ...]:
    entries = []
    for target in sorted(targets, key=lambda t: t.name):
        rule = chooser.form_rule(target)
        entries.append(TargetEntry.of(target, rule.walk_programs, rule.walk_tokens))
    return tuple(entries)
