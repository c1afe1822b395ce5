"""What a bundle covers: each signature on each target, how well founded, and what lies outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ssd_aot.bundle.choosing import BUILTIN
from ssd_aot.bundle.manifest import Manifest, VariantEntry
from ssd_aot.verification.completeness import RequiredPlan

Needs = Mapping[tuple[str, str], frozenset[str]]
"""The identities of the launches that (target, signature id) needs."""


@dataclass(frozen=True)
class SignatureCoverage:
    """A signature on a target. `fields` are its JSON form; `needed` launches of which `held` are
    there, `needed` being None where nothing but the bundle's own list tells; `statuses` count the
    variants by how they were tuned, `unchecked` those that no reference has checked."""

    target: str
    signature: str
    fields: Mapping[str, Any]
    needed: int | None
    held: int
    statuses: tuple[tuple[str, int], ...]
    unchecked: int
    covered: bool | None

    @property
    def tuned(self) -> str:
        """`measured`, `2 measured 1 default`; with `unchecked` where that holds for some."""
        if not self.statuses:
            return "nothing"
        alike = len(self.statuses) == 1
        words = [status if alike else f"{count} {status}" for status, count in self.statuses]
        return " ".join(words + ["unchecked"] * bool(self.unchecked))

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "signature": self.signature,
            "covered": self.covered,
            "needed": self.needed,
            "held": self.held,
            "tuning": dict(self.statuses),
            "unchecked": self.unchecked,
        }


@dataclass(frozen=True)
class Coverage:
    """Every signature on every target. `outside` names the kernels that the models' programs were
    recorded to run and the bundle does not hold, None where no recording tells."""

    cells: tuple[SignatureCoverage, ...]
    derived: bool
    outside: tuple[str, ...] | None

    @property
    def gaps(self) -> tuple[SignatureCoverage, ...]:
        return tuple(cell for cell in self.cells if cell.covered is False)

    def to_json(self) -> dict[str, Any]:
        return {
            "basis": "launches derived anew" if self.derived else "the bundle's own list",
            "signatures": [cell.to_json() for cell in self.cells],
            "kernels_outside": "unknown" if self.outside is None else list(self.outside),
        }

    def lines(self) -> list[str]:
        """For a terminal (see `coverage_table`)."""
        from ssd_aot.verification.coverage_table import coverage_lines

        return ["", *coverage_lines(self), ""]


def coverage(
    manifest: Manifest,
    required: RequiredPlan | None = None,
    *,
    recorded_kernels: Collection[str] | None = None,
) -> Coverage:
    """The coverage of the required signatures, or of the bundle's own.

    Without `required` the launches of builtin signatures are enumerated, where this release's are
    the bundle's; else the bundle's own list is all there is, and a signature of an incomplete
    bundle is then neither covered nor not. `recorded_kernels` are the names of the kernels that a
    recording saw the models' programs run: the one that the bundle was built of, unless given.
    """
    needs = _enumerated(manifest) if required is None else _required(manifest, required)
    signatures = dict(manifest.signatures) if required is None else dict(required.signatures)
    held: dict[tuple[str, str], dict[str, VariantEntry]] = {}
    by_launch: dict[tuple[str, str], VariantEntry] = {}
    for entry in manifest.variants:
        by_launch[entry.target, entry.launch.identity] = entry
        for name in entry.signatures:
            held.setdefault((entry.target, name), {})[entry.launch.identity] = entry
    cells = []
    for target in manifest.targets:
        for name, fields in sorted(signatures.items()):
            place = target.name, name
            if needs is None:
                own, needed = held.get(place, {}), None
            else:
                wanted = needs.get(place, frozenset())
                found = {i: by_launch.get((target.name, i)) for i in wanted}
                own, needed = {i: e for i, e in found.items() if e}, len(wanted)
            cells.append(_cell(target.name, name, fields, own.values(), needed, manifest.complete))
    names = {entry.launch.kernel for entry in manifest.variants}
    if recorded_kernels is None and "recording" in manifest.spec:
        recorded = manifest.spec["recording"]
        recorded_kernels = {*recorded["kernels"], *recorded["left_out"]}
    outside = None if recorded_kernels is None else tuple(sorted(set(recorded_kernels) - names))
    return Coverage(tuple(cells), needs is not None, outside)


def _cell(
    target: str,
    name: str,
    fields: Mapping[str, Any],
    entries: Collection[VariantEntry],
    needed: int | None,
    complete: bool,
) -> SignatureCoverage:
    covered: bool | None = len(entries) == needed if needed else False
    if needed is None:
        covered = False if not entries else True if complete else None
    return SignatureCoverage(
        target=target,
        signature=name,
        fields=fields,
        needed=needed,
        held=len(entries),
        statuses=tuple(sorted(Counter(entry.tuning.status for entry in entries).items())),
        unchecked=sum(not entry.tuning.checked for entry in entries),
        covered=covered,
    )


def _required(manifest: Manifest, required: RequiredPlan) -> Needs:
    needs: dict[tuple[str, str], set[str]] = {}
    every = tuple(target.name for target in manifest.targets)
    for need in required.launches:
        for target in need.targets or every:
            for name in need.signatures:
                needs.setdefault((target, name), set()).add(need.launch.identity)
    return {place: frozenset(found) for place, found in needs.items()}


def _enumerated(manifest: Manifest) -> Needs | None:
    """The launches of every signature as the builtin launcher asks for them; None where another
    source or another release's interface decides."""
    from ssd_aot.operation import launch_abi

    if manifest.source.name != BUILTIN or manifest.launch_abi != launch_abi():
        return None
    try:
        return dict(_each_enumerated(manifest))
    except (KeyError, TypeError):  # signatures with other fields, of another release
        return None


def _each_enumerated(manifest: Manifest) -> Iterator[tuple[tuple[str, str], frozenset[str]]]:
    from ssd_aot.layouts import FormRule
    from ssd_aot.signatures import Signature
    from ssd_aot.sources.builtin import enumerate_launches

    for target in manifest.targets:
        rule = FormRule(target.walk_programs, target.walk_tokens)
        known: dict[Signature, frozenset[str]] = {}
        for name, fields in manifest.signatures:
            signature = Signature.from_json(fields)
            bare = replace(signature, model="", tp=1, conv_kernel=0)
            if bare not in known:
                known[bare] = frozenset(
                    launch.identity for launch in enumerate_launches(bare, rule)
                )
            yield (target.name, name), known[bare]
