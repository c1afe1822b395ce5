"""Is a bundle whole, untouched, complete for its spec, and right for this host and device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ssd_aot.bundle.choosing import BUILTIN, DeviceFacts, check_host, choose_target
from ssd_aot.bundle.manifest import Manifest, TargetEntry
from ssd_aot.bundle.store import Bundle
from ssd_aot.errors import BundleError
from ssd_aot.verification.code_agreement import code_findings
from ssd_aot.verification.completeness import RequiredLaunch, RequiredPlan, completeness
from ssd_aot.verification.findings import Finding, Report

__all__ = ["HostFacts", "RequiredLaunch", "RequiredPlan", "verify"]


@dataclass(frozen=True)
class HostFacts:
    """This host as `Toolchain` records one: sysconfig's platform and SOABI."""

    platform: str
    python_abi: str


def verify(
    bundle: Bundle,
    *,
    required: RequiredPlan | None = None,
    device: DeviceFacts | None = None,
    host: HostFacts | None = None,
    gpu: str | None = None,
    digest: str | None = None,
) -> Report:
    """Check everything that the files and the given facts can tell; raises nothing for a bad one.

    Without `required` completeness is judged by the bundle's own list of launches. `gpu` is the
    name of a target the bundle must have, `digest` the digest it must have.
    """
    findings = (
        *_digest(bundle, digest),
        *_files(bundle),
        *code_findings(bundle),
        *completeness(bundle.manifest, required),
        *_target(bundle.manifest, gpu),
        *_host(bundle.manifest, host),
        *_device(bundle.manifest, device),
    )
    return Report(str(bundle.path), bundle.digest, findings)


def _digest(bundle: Bundle, wanted: str | None) -> Iterator[Finding]:
    canonical = bundle.manifest.digest
    if canonical != bundle.digest:
        what = "manifest.json is not in its canonical form"
        yield Finding("failed", "digest", what, bundle.digest, canonical, "build the bundle anew")
    if wanted is None:
        yield Finding("not checked", "digest", "no digest was given to compare with")
    elif wanted != bundle.digest:
        what = "this is another bundle"
        yield Finding(
            "failed", "digest", what, bundle.digest, wanted, "get the bundle with that digest"
        )
    else:
        yield Finding("ok", "digest", "as given")


def _files(bundle: Bundle) -> Iterator[Finding]:
    problems = bundle.check_files()
    for problem in problems:
        used = f" (code of {', '.join(problem.variants)})" if problem.variants else ""
        what = f"{problem.kind}: {problem.path}{used}"
        yield Finding("failed", "files", what, problem.found, problem.wanted, problem.mend)
    if not problems:
        files = bundle.manifest.files
        total = sum(size for _, _, size in files)
        what = f"{len(files)} of {len(files)} files are whole, {total} bytes, and nothing else"
        yield Finding("ok", "files", what)


def _target(manifest: Manifest, gpu: str | None) -> Iterator[Finding]:
    if gpu is None:
        return
    names = ", ".join(target.name for target in manifest.targets)
    if gpu in {target.name for target in manifest.targets}:
        yield Finding("ok", "target", f"{gpu} is a target of the bundle")
    else:
        what = f"{gpu} is not a target of the bundle"
        yield Finding("failed", "target", what, names, gpu, f"ssd-aot build --gpu {gpu}")


def _host(manifest: Manifest, host: HostFacts | None) -> Iterator[Finding]:
    if manifest.source.name == BUILTIN:
        yield Finding("ok", "host", "builtin kernels run on any platform and Python")
        return
    if host is None:
        yield Finding("not checked", "host", "no host was given to compare with")
        return
    try:
        check_host(manifest, host.platform, host.python_abi)
    except BundleError as error:
        yield Finding.of_error("host", error)
    else:
        yield Finding("ok", "host", f"built for {host.platform}, {host.python_abi}")


def _device(manifest: Manifest, device: DeviceFacts | None) -> Iterator[Finding]:
    if device is None:
        yield Finding("not checked", "device", "no GPU was given to compare with")
        return
    try:
        target, borrowed = choose_target(
            manifest.targets, device.capability, device.name, device.target
        )
    except BundleError as error:
        yield Finding.of_error("device", error)
    else:
        yield Finding("ok", "device", f"{device.name} is served {_by(target, borrowed)}")


def _by(target: TargetEntry, borrowed: bool) -> str:
    if borrowed:
        return f"by {target.name}, borrowed: another model of the same architecture"
    return f"by {target.name}"
