"""Whether a bundle holds every launch and signature that its spec needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ssd_aot.bundle.manifest import Manifest
from ssd_aot.bundle.needs import unmet
from ssd_aot.launches import Launch
from ssd_aot.verification.findings import Finding

_REBUILD = "ssd-aot build with this spec"


@dataclass(frozen=True)
class RequiredLaunch:
    """A launch that the spec needs, the ids of the signatures that need it, and the names of the
    targets it is needed for (empty: all of the bundle's)."""

    launch: Launch
    signatures: tuple[str, ...]
    targets: tuple[str, ...] = ()


@dataclass(frozen=True)
class RequiredPlan:
    """What the spec needs, derived anew: launches, signatures by id in their JSON form, and of an
    engine's kernels the sources they have here."""

    launches: tuple[RequiredLaunch, ...]
    signatures: Mapping[str, Mapping[str, Any]]
    sources: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(
        cls,
        launches: Mapping[str, tuple[Launch, tuple[str, ...]]],
        signatures: Mapping[str, Mapping[str, Any]],
    ) -> RequiredPlan:
        """From launches by identity, each with its signature ids, needed for every target."""
        return cls(tuple(RequiredLaunch(*pair) for pair in launches.values()), signatures)


def completeness(manifest: Manifest, required: RequiredPlan | None) -> Iterator[Finding]:
    """One finding for each gap, or one that says what was compared and found whole."""
    check = "completeness"
    gaps = [
        Finding("failed", check, "a launch that the build could not make", name, "", _REBUILD)
        for name in manifest.missing
    ]
    if required is None:
        gaps += _uncovered(manifest)
        basis = "checked against the bundle's own list of launches"
    else:
        gaps += _differing_signatures(manifest, required)
        gaps += _missing_launches(manifest, required)
        gaps += _other_sources(manifest, required)
        basis = "checked against the launches that the spec needs"
    yield from gaps
    if not gaps:
        launches = len({entry.launch.identity for entry in manifest.variants})
        what = (
            f"{launches} launches for {len(manifest.signatures)} signatures on "
            f"{', '.join(target.name for target in manifest.targets)}, {basis}"
        )
        yield Finding("ok", check, what)


def _uncovered(manifest: Manifest) -> Iterator[Finding]:
    covered = {(entry.target, name) for entry in manifest.variants for name in entry.signatures}
    for target in manifest.targets:
        for name, _ in manifest.signatures:
            if (target.name, name) not in covered:
                what = f"signature {name} has no launch for {target.name}"
                yield Finding("failed", "completeness", what, "none", "one or more", _REBUILD)
    for gap in unmet(manifest):
        what = "less is there than the build planned"
        yield Finding("failed", "completeness", what, gap, "all of them", _REBUILD)


def _differing_signatures(manifest: Manifest, required: RequiredPlan) -> Iterator[Finding]:
    have = dict(manifest.signatures)
    for name, wanted in sorted(required.signatures.items()):
        if name not in have:
            what = f"signature {name} of the spec is not in the bundle"
            yield Finding("failed", "completeness", what, "none", name, _REBUILD)
        for field in sorted(wanted) if name in have else ():
            found = have[name].get(field)
            if found != wanted[field]:
                what = f"signature {name} differs in {field}"
                yield Finding(
                    "failed", "completeness", what, str(found), str(wanted[field]), _REBUILD
                )


def _first(signatures: tuple[str, ...], shown: int = 3) -> str:
    more = len(signatures) - shown
    return ", ".join(signatures[:shown]) + (f" and {more} more" if more > 0 else "")


def _missing_launches(manifest: Manifest, required: RequiredPlan) -> Iterator[Finding]:
    have = {(entry.target, entry.launch.identity) for entry in manifest.variants}
    every = tuple(target.name for target in manifest.targets)
    for need in required.launches:
        for target in need.targets or every:
            if (target, need.launch.identity) not in have:
                yield Finding(
                    "failed",
                    "completeness",
                    f"a launch of {need.launch.kernel} is missing for {target}, needed by "
                    + _first(need.signatures),
                    "no variant of it",
                    str(need.launch),
                    f"{_REBUILD} and --gpu {target}",
                )


def _other_sources(manifest: Manifest, required: RequiredPlan) -> Iterator[Finding]:
    built = dict(manifest.source.kernels)
    for kernel, here in required.sources:
        found = built.get(kernel)
        if found not in (None, here):
            what = f"{kernel} has another source here than {manifest.source.version} had"
            yield Finding("failed", "completeness", what, str(found), here, _REBUILD)
