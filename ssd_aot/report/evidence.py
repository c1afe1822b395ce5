"""What tuning records say of a bundle's launches, and what they do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ssd_aot.bundle.choosing import BUILTIN
from ssd_aot.bundle.manifest import Manifest, VariantEntry
from ssd_aot.errors import SpecError
from ssd_aot.sources.builtin import kernel_sources
from ssd_aot.targets import target
from ssd_aot.tuning.choices import RecordFile
from ssd_aot.tuning.records import Entry, Session


@dataclass(frozen=True)
class Evidence:
    """A record's entry for a variant's launch, of the variant's own kernel source.

    `file` is the record's name without its folder, `gpu` the target it was measured on; `caveats`
    say in which way the measurement was made under other conditions than the bundle was.
    """

    entry: Entry
    file: str
    gpu: str
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True)
class Lack:
    """Why there is no entry to show for a variant, as half a sentence."""

    reason: str


class Records:
    """Tuning records held against one bundle."""

    def __init__(self, files: Sequence[RecordFile], manifest: Manifest) -> None:
        self._files = files
        self._sources = _sources(manifest)
        self._compiler = Session.of(manifest.toolchain, date="", device="", driver="").compiler

    def find(self, variant: VariantEntry) -> Evidence | Lack:
        """The entry that says most of a variant: of its own GPU and compiler before others, in the
        order of the files among equals."""
        found: list[Evidence] = []
        refused: list[str] = []
        for file in self._files:
            entry = file.record.entry(variant.launch)
            if entry is None:
                continue
            refusal = self._refusal(entry, file.record.gpu, variant)
            if refusal:
                refused.append(refusal)
            else:
                caveats = self._caveats(entry, file.record.gpu, variant)
                found.append(Evidence(entry, file.path.name, file.record.gpu, caveats))
        if found:
            return min(found, key=lambda e: (e.gpu != variant.target, len(e.caveats)))
        if refused:
            return Lack(f"a record has it, but {refused[0]}")
        return Lack("no record at hand has this launch" if self._files else "no record was at hand")

    def _refusal(self, entry: Entry, gpu: str, variant: VariantEntry) -> str:
        if entry.source != self._sources.get(variant.launch.kernel):
            return "measured with other kernel sources than the bundle's"
        if _architecture(gpu) != _architecture(variant.target):
            return f"measured on another architecture ({gpu})"
        return ""

    def _caveats(self, entry: Entry, gpu: str, variant: VariantEntry) -> tuple[str, ...]:
        caveats = []
        if gpu != variant.target:
            caveats.append(f"measured on {gpu}, not on {variant.target}")
        if entry.session.compiler != self._compiler:
            caveats.append(
                f"compiled by Triton {entry.session.triton_version} and "
                f"{entry.session.ptxas_version}, which is not what compiled the bundle"
            )
        if entry.winner is not None and entry.winner != variant.configuration:
            caveats.append("the bundle holds another configuration than this record's winner")
        return tuple(caveats)


def _sources(manifest: Manifest) -> Mapping[str, str]:
    """Each kernel's source as records hash it, from the bundle's own hashes; nothing where the
    bundle is of another source, or of a release that kept its kernels elsewhere."""
    if manifest.source.name != BUILTIN:
        return {}
    try:
        return dict(kernel_sources(manifest.source.kernels))
    except KeyError:
        return {}


def _architecture(gpu: str) -> str:
    try:
        return target(gpu).arch
    except SpecError:
        return gpu
