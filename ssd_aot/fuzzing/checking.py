"""Fuzzing what `verify` checks and what `plan` shows."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ssd_aot.bundle.manifest import Manifest, TargetEntry
from ssd_aot.errors import HostError, SpecError
from ssd_aot.layouts import FormRule
from ssd_aot.progress import ProgressPrinter
from ssd_aot.spec import Spec
from ssd_aot.verification.findings import Finding, Report

if TYPE_CHECKING:
    from ssd_aot.fuzzing.fuzzer import FuzzReport, Held
    from ssd_aot.plan import Plan
    from ssd_aot.targets import Target
    from ssd_aot.verification.completeness import RequiredPlan


@dataclass(frozen=True)
class Fuzzing:
    """How much to fuzz: `batches` in all, the same ones for the same seed."""

    batches: int
    seed: int = 0


def fuzzed(
    report: Report,
    manifest: Manifest,
    spec: Spec | None,
    required: RequiredPlan | None,
    fuzzing: Fuzzing,
) -> Report:
    """The report with what fuzzing the bundle found; `spec` is the bundle's own when None."""
    # Imported here: launch code needs torch, which a verification without fuzzing can spare.
    from ssd_aot.fuzzing.fuzzer import held

    try:
        own = spec or Spec.from_normalised(manifest.spec)
    except SpecError as error:
        what = f"the spec in the bundle cannot be used: {error.what}"
        finding = Finding("not checked", "fuzz", what, error.found)
        return replace(report, findings=(*report.findings, finding))
    found = _fuzz(own, held(manifest), fuzzing, _planned(manifest, required))
    if found is None:
        what = f"this release has no launch code to draw batches for: {manifest.source.name}"
        finding = Finding("not checked", "fuzz", what)
        return replace(report, findings=(*report.findings, finding))
    return replace(
        report,
        findings=(*report.findings, *found.findings()),
        supplements=(*report.supplements, ("fuzz", found)),
    )


def _fuzz(
    spec: Spec,
    there: Sequence[Held],
    fuzzing: Fuzzing,
    planned: Collection[tuple[str, str]] = (),
) -> FuzzReport | None:
    """None for a source without launch code to draw batches for."""
    from ssd_aot.fuzzing.fuzzer import fuzz
    from ssd_aot.fuzzing.launch_code import launch_code

    code = launch_code(spec.source)
    if code is not None:
        return fuzz(
            spec, code, there, batches=fuzzing.batches, seed=fuzzing.seed, planned=planned,
            on_progress=ProgressPrinter(),
        )  # fmt: skip
    from ssd_aot.fuzzing.engines import LAUNCH_CODE, fuzz_engine

    if spec.source not in LAUNCH_CODE:
        return None
    return fuzz_engine(spec, there, batches=fuzzing.batches, seed=fuzzing.seed, planned=planned)


def _planned(manifest: Manifest, required: RequiredPlan | None) -> Collection[tuple[str, str]]:
    every = tuple(target.name for target in manifest.targets)
    return {
        (target, need.launch.identity)
        for need in (required.launches if required else ())
        for target in need.targets or every
    }


def fuzz_plan(spec: Spec, targets: Sequence[Target], plan: Plan, fuzzing: Fuzzing) -> FuzzReport:
    """The same for a plan that nobody has built yet, by the default form rules. A miss is a gap in
    the planner. Raises HostError for a source without launch code here."""
    from ssd_aot.fuzzing.fuzzer import Held

    there = [
        Held(
            _entry(target),
            tuple(planned.launch for planned in plan.launches if planned.target == target),
        )
        for target in targets
    ]
    found = _fuzz(spec, there, fuzzing)
    if found is None:
        from ssd_aot.fuzzing.engines import LAUNCH_CODE

        raise HostError(
            "this release has no launch code to draw batches for",
            where="--fuzz",
            found=f"source {spec.source}",
            wanted=f"builtin, {', '.join(LAUNCH_CODE)}",
            mend="leave --fuzz out",
        )
    return found


def _entry(target: Target) -> TargetEntry:
    rule = FormRule.for_gpu(target.multiprocessors)
    return TargetEntry.of(target, rule.walk_programs, rule.walk_tokens)
