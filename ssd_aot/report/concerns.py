"""What a reader must know before relying on a bundle, the gravest first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from ssd_aot.bundle.choosing import BUILTIN
from ssd_aot.bundle.manifest import Manifest
from ssd_aot.bundle.store import Problem
from ssd_aot.report.gaps import Gap
from ssd_aot.report.launch_groups import LaunchGroup, Member
from ssd_aot.report.launch_wording import short_name
from ssd_aot.report.vocabulary import listed, plural, status_kind


@dataclass(frozen=True)
class Concern:
    """`bad`: the bundle cannot be used as it is; `open`: nobody knows yet; `note`: good to know.
    `items` name what it is about, `mend` says what to do; commands stand in backticks."""

    level: Literal["bad", "open", "note"]
    title: str
    text: str
    items: tuple[str, ...] = ()
    mend: str = ""


def find_concerns(
    manifest: Manifest,
    problems: Sequence[Problem],
    gaps: Sequence[Gap],
    groups: Sequence[LaunchGroup],
) -> tuple[Concern, ...]:
    """Everything about a bundle that is wrong, open or worth a note."""
    found = (
        *_damage(problems), *_missing(manifest, gaps), *_untuned(manifest, groups),
        *_borrowed(groups), *_unchecked(groups), *_pinned(groups), *_unshown(groups),
    )  # fmt: skip
    return tuple(sorted(found, key=lambda concern: ("bad", "open", "note").index(concern.level)))


def _damage(problems: Sequence[Problem]) -> Iterator[Concern]:
    if problems:
        yield Concern(
            "bad",
            f"{plural(len(problems), 'file')} of the bundle {'is' if len(problems) == 1 else 'are'}"
            " not as built",
            "The bundle was damaged or changed after it was built. It does not verify and must not "
            "be loaded.",
            tuple(f"{p.path}: {p.kind}; found {p.found}, wanted {p.wanted}" for p in problems),
            "Copy the bundle again from where it was built, or build it anew.",
        )


def _missing(manifest: Manifest, gaps: Sequence[Gap]) -> Iterator[Concern]:
    if gaps:
        needing = {name for gap in gaps for name in gap.signatures}
        unknown = sum(not gap.words for gap in gaps)
        effect = f"{plural(len(needing), 'signature')} of {len(manifest.signatures)} need one"
        if unknown:
            effect += f", and what else needs {unknown} of them is not known here"
        yield Concern(
            "bad",
            f"Incomplete: {plural(len(gaps), 'launch', 'launches')} could not be built",
            f"This bundle was written with `--keep-going`. {effect}. A call that reaches a missing "
            "launch fails with an error that names it; nothing is compiled in its place.",
            tuple(
                f"{gap.kernel} for {gap.target}: {gap.words}; needed by "
                f"{plural(len(gap.signatures), 'signature')}" if gap.words else gap.text
                for gap in gaps
            ),
            "Repair what the build named, or take the signatures out of the spec, and build again.",
        )  # fmt: skip


def _untuned(manifest: Manifest, groups: Sequence[LaunchGroup]) -> Iterator[Concern]:
    chosen = _of_kind(groups, "default")
    if chosen:
        targets = sorted({group.target for group, _ in chosen})
        commands = listed([f"`ssd-aot tune --gpu {name}`" for name in targets])
        tune = f"run {commands} with the same spec, and build again"
        yield Concern(
            "open",
            f"{_count(chosen, groups)} untuned",
            "No measurement fitted them when the bundle was built, so each took the default: the "
            "first candidate that fits the GPU. A faster one may exist.",
            _named(chosen, groups),
            f"On such a GPU {tune if manifest.source.name == BUILTIN else 'build it again'}.",
        )


def _borrowed(groups: Sequence[LaunchGroup]) -> Iterator[Concern]:
    chosen = _of_kind(groups, "borrowed")
    if chosen:
        origins = sorted({m.variant.tuning.status for _, members in chosen for m in members})
        yield Concern(
            "open",
            f"{_count(chosen, groups)} borrowed",
            f"Their configuration won elsewhere: {listed(origins)}. That it is the best one here "
            "was not measured.",
            _named(chosen, groups),
            "Tune on the GPU itself, with the compiler of the build, and build again.",
        )


def _unchecked(groups: Sequence[LaunchGroup]) -> Iterator[Concern]:
    chosen = _select(groups, lambda member: not member.variant.tuning.checked)
    if chosen:
        yield Concern(
            "open",
            f"{_count(chosen, groups)} unchecked",
            "When the bundle was built, no result of these had been compared with the float64 "
            "reference on such a GPU. Whether that has been done since, a bundle does not record.",
            (),
            "Run `ssd-aot verify BUNDLE --run` on such a GPU: it runs every signature and judges "
            "the results.",
        )


def _pinned(groups: Sequence[LaunchGroup]) -> Iterator[Concern]:
    chosen = _of_kind(groups, "pinned")
    if chosen:
        yield Concern(
            "note",
            f"{_count(chosen, groups)} fixed by the spec",
            "The spec pins their configuration; no measurement was asked.",
            _named(chosen, groups),
        )


def _unshown(groups: Sequence[LaunchGroup]) -> Iterator[Concern]:
    chosen = _select(
        groups,
        lambda m: m.evidence is None and status_kind(m.variant.tuning.status) == "measured",
    )
    if chosen:
        reasons = Counter(member.lack for _, members in chosen for member in members)
        yield Concern(
            "note",
            f"{_count(chosen, groups)} measured, and the measurements are not at hand",
            "The bundle says that they were measured, and with which result, but not what the "
            "other candidates took: " + listed(sorted(reasons)) + ".",
            _named(chosen, groups),
            "Give the record that the build used with `--tuning FILE`.",
        )


Chosen = list[tuple[LaunchGroup, list[Member]]]


def _of_kind(groups: Sequence[LaunchGroup], kind: str) -> Chosen:
    return _select(groups, lambda member: status_kind(member.variant.tuning.status) == kind)


def _select(groups: Sequence[LaunchGroup], wanted: Callable[[Member], bool]) -> Chosen:
    found = ((group, [m for m in group.members if wanted(m)]) for group in groups)
    return [(group, members) for group, members in found if members]


def _count(chosen: Chosen, groups: Sequence[LaunchGroup]) -> str:
    """`6 of 17 launches are`, launches for several targets counted for each."""
    count, every = sum(len(m) for _, m in chosen), sum(len(group.members) for group in groups)
    return f"{count} of {plural(every, 'launch', 'launches')} {'is' if count == 1 else 'are'}"


def _named(chosen: Chosen, groups: Sequence[LaunchGroup]) -> tuple[str, ...]:
    several = len({group.target for group in groups}) > 1
    return tuple(
        f"{short_name(group.kernel)}{f' for {group.target}' if several else ''}: {group.words}"
        + (f" ({len(members)} launches)" if len(members) > 1 else "")
        for group, members in chosen
    )
