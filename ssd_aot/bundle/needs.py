"""What a build planned, as counts: a bundle from which an entry was taken away no longer has them.

The entries of a manifest tell what is there. Taken away from the manifest as well, with all hashes
put right, an entry leaves no trace among them; these counts tell of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ssd_aot.bundle.json_readers import Reader, count, each, record, table, text

if TYPE_CHECKING:
    from ssd_aot.bundle.entries import ManifestParts
    from ssd_aot.launches import Launch

Counts = tuple[tuple[str, int], ...]
"""(kernel, how many), sorted."""


@dataclass(frozen=True, order=True)
class SignatureNeeds:
    """How many launches of each kernel each of these signatures needs on a target. Without
    signatures: how many launches there are that no signature names, as those of a recording."""

    target: str
    kernels: Counts
    signatures: tuple[str, ...]


@dataclass(frozen=True)
class Needs:
    """All of it; `tunings` are how many results of each kernel's tuning there are by target."""

    launches: tuple[SignatureNeeds, ...]
    tunings: tuple[tuple[str, Counts], ...] = ()

    @classmethod
    def of(
        cls,
        planned: Iterable[tuple[str, Launch, Sequence[str]]],
        tunings: Iterable[tuple[str, str]] = (),
    ) -> Needs:
        """From (target, launch, ids of the signatures that need it) and, for each result of a
        tuning, (target, kernel)."""
        found = _by_signature(planned)
        alike: dict[tuple[str, Counts], list[str]] = {}
        for (target, signature), kernels in found.items():
            alike.setdefault((target, _counts(kernels)), []).append(signature)
        launches = tuple(
            SignatureNeeds(target, kernels, tuple(sorted(filter(None, names))))
            for (target, kernels), names in alike.items()
        )
        results: dict[str, Counter[str]] = {}
        for target, kernel in tunings:
            results.setdefault(target, Counter())[kernel] += 1
        counted = tuple((target, _counts(found)) for target, found in sorted(results.items()))
        return cls(tuple(sorted(launches)), counted)

    def to_json(self, positions: Mapping[str, int]) -> dict[str, Any]:
        """`positions` of the signatures by id, as variants name them."""
        return {
            "launches": [
                {
                    "target": need.target,
                    "kernels": dict(need.kernels),
                    "signatures": [positions[name] for name in need.signatures],
                }
                for need in sorted(self.launches)
            ],
            "tunings": {target: dict(counts) for target, counts in self.tunings},
        }


def needs_reader(named: Reader[tuple[str, ...]]) -> Reader[Needs]:
    """Reads `Needs`; `named` turns positions into the ids of signatures."""
    counts = table(count)
    return record(
        Needs,
        launches=each(record(SignatureNeeds, target=text, kernels=counts, signatures=named)),
        tunings=table(counts),
    )


def unmet(
    manifest: ManifestParts, wanted: Callable[[str], bool] = lambda signature: True
) -> Iterator[str]:
    """What the bundle should hold and does not, one sentence each, for the wanted signatures;
    always in the same order. Nothing for a manifest without `needs`."""
    if manifest.needs is None:
        return
    held = _by_signature((e.target, e.launch, e.signatures) for e in manifest.variants)
    for need in sorted(manifest.needs.launches):
        for signature in need.signatures or ("",):
            if signature and not wanted(signature):
                continue
            have = held.get((need.target, signature), {})
            for kernel, wanted_count in need.kernels:
                found = len(have.get(kernel, ()))
                if found < wanted_count:
                    there = f"{found} of {wanted_count} launches"
                    whom = signature or "the recorded program"
                    yield f"{kernel} for {need.target}: {there} that {whom} needs"
    if manifest.triton is None:
        return
    results = Counter((tuning.target, tuning.kernel) for tuning in manifest.triton.tunings)
    for target, counts in manifest.needs.tunings:
        for kernel, wanted_count in counts:
            found = results[target, kernel]
            if found < wanted_count:
                yield f"{kernel} for {target}: {found} of {wanted_count} tuning results"
    cached = {(kernel.target, kernel.variant) for kernel in manifest.triton.kernels}
    for entry in manifest.variants:
        if (entry.target, entry.variant.identity) not in cached:
            yield f"{entry.name}: no entry for Triton's cache"


_Launches = dict[tuple[str, str], dict[str, set[str]]]
"""(target, signature) → kernel → identities of its launches; no signature is an empty one."""


def _by_signature(entries: Iterable[tuple[str, Launch, Sequence[str]]]) -> _Launches:
    found: _Launches = {}
    for target, launch, signatures in entries:
        for signature in signatures or ("",):
            kernels = found.setdefault((target, signature), {})
            kernels.setdefault(launch.kernel, set()).add(launch.identity)
    return found


def _counts(kernels: Mapping[str, Any]) -> Counts:
    return tuple(sorted((name, n if isinstance(n, int) else len(n)) for name, n in kernels.items()))
