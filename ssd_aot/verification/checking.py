"""`ssd-aot verify`: the plan derived anew, the host and GPU here, and the bundle held to them."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ssd_aot.bundle.choosing import BUILTIN, DeviceFacts
from ssd_aot.bundle.pin import pinned_digest
from ssd_aot.bundle.store import Bundle
from ssd_aot.errors import BundleError, HostError, SpecError, SsdAotError, UsageError
from ssd_aot.fuzzing.checking import Fuzzing, fuzzed
from ssd_aot.layouts import FormRule
from ssd_aot.operation import launch_abi
from ssd_aot.progress import ProgressPrinter
from ssd_aot.runtime import driver
from ssd_aot.sources import require_source
from ssd_aot.spec import Spec, load_spec, resolve_spec
from ssd_aot.targets import Target, target, target_for_device
from ssd_aot.verification.completeness import RequiredPlan
from ssd_aot.verification.coverage import coverage
from ssd_aot.verification.findings import Finding, Report
from ssd_aot.verification.verifying import HostFacts, verify


def check_bundle(
    path: str,
    *,
    specs: Sequence[str] = (),
    gpu: str | None = None,
    digest: str | None = None,
    run: bool = False,
    fuzz: Fuzzing | None = None,
) -> Report:
    """Everything `verify` can check here about the bundle at `path`.

    The plan is derived from `specs`, else from the spec inside the bundle where its source is at
    hand. With `run`, every signature is executed on the GPU here; with `fuzz`, random batches that
    the same spec promises are held against the bundle's launches.

    Raises `SpecError` for a spec that cannot be used, `HostError` when the given spec's source is
    not here or `run` finds no GPU.
    """
    spec = load_spec([resolve_spec(name) for name in specs]) if specs else None
    if spec is not None and spec.recording is None:
        require_source(spec.source, spec.place("source"))
    pinned = pinned_digest(digest, "--digest")
    try:
        bundle = Bundle.open(path)
        required = _own_plan(bundle) if spec is None else _plan(spec, bundle)
    except BundleError as error:
        return Report.refused(path, error)
    device = _device()
    host = HostFacts(sysconfig.get_platform(), sysconfig.get_config_var("SOABI") or "")
    report = verify(
        bundle,
        required=required,
        device=device,
        host=host,
        gpu=target(gpu, "--gpu").name if gpu else None,
        digest=pinned,
    )
    report = replace(
        report,
        findings=(*report.findings, *_launch_interface(bundle), *_toolchain(bundle)),
        supplements=(("coverage", coverage(bundle.manifest, required)),),
    )
    if fuzz is not None:
        report = fuzzed(report, bundle.manifest, spec, required, fuzz)
    return replace(report, findings=(*report.findings, *_run(bundle, report, run)))


def _launch_interface(bundle: Bundle) -> Sequence[Finding]:
    """What `load` compares before it lets this release launch a bundle's kernels."""
    manifest = bundle.manifest
    if manifest.source.name != BUILTIN or manifest.launch_abi == launch_abi():
        return []
    what = "built for another launch interface than this release has, so load refuses it"
    mend = "build it anew with this release"
    return [Finding("failed", "launch", what, manifest.launch_abi, launch_abi(), mend)]


def _toolchain(bundle: Bundle) -> Iterator[Finding]:
    """What `load` compares before it lets Triton find an engine's kernels, but for what `host` has
    compared already."""
    manifest = bundle.manifest
    if manifest.source.name == BUILTIN:
        return
    try:
        # Imported here: only engine kernels need Triton.
        from ssd_aot.triton_compat import same_toolchain, toolchain
    except ImportError as error:
        yield Finding("not checked", "toolchain", f"Triton is not here: {error}")
        return
    differences = [
        difference
        for difference in same_toolchain(toolchain(of_engine=True), manifest.toolchain)
        if difference.field not in ("platform", "python_abi")
    ]
    for one in differences:
        what = f"toolchain.{one.field}: load refuses it here"
        mend = "build the bundle in the image that serves it"
        yield Finding("failed", "toolchain", what, one.found, one.wanted, mend)
    if not differences:
        yield Finding("ok", "toolchain", "Triton, ptxas and their variables are as it was built")


def _own_plan(bundle: Bundle) -> RequiredPlan | None:
    """The plan of the bundle's own spec, None where its source is not here to derive it from."""
    try:
        require_source(bundle.manifest.source.name, str(bundle.path))
    except (HostError, UsageError):
        return None
    try:
        return _plan(Spec.from_normalised(bundle.manifest.spec), bundle)
    except SpecError as error:
        raise BundleError(
            "the spec in the bundle cannot be used",
            where=str(bundle.path),
            found=str(error),
            mend="build it anew with this release",
        ) from error


def _plan(spec: Spec, bundle: Bundle) -> RequiredPlan:
    """The plan of a spec for the bundle's targets, with the facts that its launches go by."""
    # Imported here: tracing needs torch, which a bundle that cannot be read can spare.
    from ssd_aot.plan import make_plan

    targets = [
        Target(t.name, t.arch, t.capability, t.shared_bytes_optin, t.multiprocessors)
        for t in bundle.manifest.targets
    ]
    rules = {t.name: FormRule(t.walk_programs, t.walk_tokens) for t in bundle.manifest.targets}
    return make_plan(spec, targets, rules).required()


def _device() -> DeviceFacts | None:
    """The first GPU here, or None on a host without one."""
    try:
        found = driver.device(0)
    except SsdAotError:
        return None
    known = target_for_device(found.name, found.capability)
    return DeviceFacts(found.name, found.capability, known.name if known else None)


def _run(bundle: Bundle, report: Report, run: bool) -> Sequence[Finding]:
    if not run:
        return [Finding("not checked", "results", "signatures were not run (--run)")]
    if bundle.manifest.triton is not None:
        return [Finding("not checked", "results", "an engine's kernels run in the engine alone")]
    if not report.passed:
        return [Finding("not checked", "results", "not run: the checks above failed")]
    if _device() is None:
        raise HostError(
            "running signatures needs a CUDA GPU",
            where="--run",
            found="no GPU on this host",
            wanted="a GPU that the bundle serves",
            mend="run this on the target GPU, or leave --run out",
        )
    from ssd_aot.measurement.running import run_signatures

    return list(run_signatures(bundle, on_progress=ProgressPrinter()))
