"""Is a bundle whole, untouched, complete for its spec, and right for this host and device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ssd_aot.bundle.choosing import BUILTIN, DeviceFacts, check_host, choose_target
from ssd_aot.bundle.elf import cubin_architecture, same_architecture
from ssd_aot.bundle.manifest import Manifest, TargetEntry, VariantEntry
from ssd_aot.bundle.store import Bundle
from ssd_aot.completeness import RequiredLaunch, RequiredPlan, completeness
from ssd_aot.errors import BundleError
from ssd_aot.findings import Finding, Report

__all__ = ["HostFacts", "RequiredLaunch", "RequiredPlan", "verify", "verify_path"]


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
        *_architectures(bundle),
        *completeness(bundle.manifest, required),
        *_target(bundle.manifest, gpu),
        *_host(bundle.manifest, host),
        *_device(bundle.manifest, device),
    )
    return Report(str(bundle.path), bundle.digest, findings)


def verify_path(path: str, **facts: Any) -> Report:
    """`verify` for the bundle at a path, where one that cannot be opened is a failed report too.

    Raises UsageError for an empty path.
    """
    try:
        bundle = Bundle.open(path)
    except BundleError as error:
        return Report.refused(path, error)
    return verify(bundle, **facts)


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


def _architectures(bundle: Bundle) -> Iterator[Finding]:
    """Each code object's own header against the target of each variant that uses it."""
    targets = {target.name: target for target in bundle.manifest.targets}
    users: dict[tuple[str, str], list[VariantEntry]] = {}
    for entry in bundle.manifest.variants:
        users.setdefault((entry.object.sha256, entry.target), []).append(entry)
    agreed, unread = 0, 0
    for (_, name), entries in users.items():
        code, wanted = entries[0].object, targets[name].arch
        try:
            data = bundle.read_object(code)
        except BundleError:
            unread += 1  # `files` has told of it
            continue
        names = ", ".join(entry.name for entry in entries)
        try:
            found = cubin_architecture(data)
            agree = same_architecture(found, wanted) and same_architecture(code.arch, wanted)
        except BundleError as error:
            yield Finding(
                "failed",
                "architecture",
                f"{code.path}, code of {names}: {error.what}",
                error.found,
                error.wanted,
                "build the bundle anew",
            )
            continue
        if agree:
            agreed += 1
            continue
        yield Finding(
            "failed",
            "architecture",
            f"{code.path}, code of {names}, is for another architecture",
            f"{found} in its ELF header, {code.arch} in the manifest",
            f"{wanted} for {name}",
            "build the bundle anew",
        )
    if agreed:
        what = f"{agreed} of {len(users)} code objects are for their target by their ELF header"
        yield Finding("ok", "architecture", what)
    if unread:
        what = f"{unread} of {len(users)} code objects cannot be read"
        yield Finding("not checked", "architecture", what)


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
