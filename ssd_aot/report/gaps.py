"""What an incomplete bundle lacks, and which signatures that leaves without code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ssd_aot.bundle.choosing import BUILTIN
from ssd_aot.bundle.manifest import Manifest, TargetEntry
from ssd_aot.launches import Launch
from ssd_aot.layouts import FormRule
from ssd_aot.report.launch_wording import launch_words, relative_words
from ssd_aot.signatures import Signature
from ssd_aot.sources.builtin import enumerate_launches


@dataclass(frozen=True)
class Gap:
    """A launch that the build could not make, as the manifest spells it.

    `words` say what it is for, and `signatures` are all that need it; both are empty where this
    release does not enumerate that launch, and what needs it is then not known here.
    """

    text: str
    target: str = ""
    kernel: str = ""
    words: str = ""
    signatures: tuple[str, ...] = ()


def find_gaps(manifest: Manifest) -> tuple[Gap, ...]:
    """One gap for each missing launch of the manifest, in its order."""
    known = dict(_known(manifest)) if manifest.missing else {}
    return tuple(known.get(text, Gap(text)) for text in manifest.missing)


def lacking(gaps: tuple[Gap, ...], target: str) -> list[str]:
    """The signatures that need a missing launch on a target, once for each."""
    return [name for gap in gaps if gap.target == target for name in gap.signatures]


def _known(manifest: Manifest) -> Iterator[tuple[str, Gap]]:
    """Missing launches that this release's own enumeration makes too, by the manifest's text."""
    if manifest.source.name != BUILTIN:
        return
    for target in manifest.targets:
        for launch, signatures in _needed(manifest, target).items():
            # As `PlannedLaunch` spells itself.
            head = f"{launch} on {target.name}, needed by "
            for text in manifest.missing:
                if text.startswith(head):
                    words = ", ".join(filter(None, (launch_words(launch), relative_words(launch))))
                    yield text, Gap(text, target.name, launch.kernel, words, tuple(signatures))


def _needed(manifest: Manifest, target: TargetEntry) -> dict[Launch, list[str]]:
    """Launches that the bundle does not hold for a target, with the ids that need them."""
    rule = FormRule(target.walk_programs, target.walk_tokens)
    held = {v.launch.identity for v in manifest.variants if v.target == target.name}
    needed: dict[Launch, list[str]] = {}
    for name, values in manifest.signatures:
        try:
            launches = enumerate_launches(Signature.from_json(values), rule)
        except (KeyError, TypeError):
            # A signature of another release, with other fields.
            continue
        for launch in launches:
            if launch.identity not in held:
                needed.setdefault(launch, []).append(name)
    return needed
