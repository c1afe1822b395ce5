"""A bundle's variants in the groups a reader looks at: one kernel, one geometry, one way to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ssd_aot.bundle.manifest import Manifest, VariantEntry
from ssd_aot.launches import Configuration, Launch
from ssd_aot.report.evidence import Evidence, Lack, Records
from ssd_aot.report.launch_wording import differences, launch_words, relative_words
from ssd_aot.tuning.records import Trial
from ssd_aot.tuning.winning import scores

FEWEST_PLOTTED = 3
"""Trials an entry has where candidates were searched; with fewer, only the winner and the default
were held against each other, which a table says better."""


@dataclass(frozen=True)
class CandidateTrial:
    """A trial with its place among the others: `score` is its time relative to the best one's, the
    geometric mean over the batches, or None for one that was rejected or not timed."""

    trial: Trial
    score: float | None
    held: bool
    default: bool
    winner: bool

    @property
    def configuration(self) -> Configuration:
        return self.trial.configuration


@dataclass(frozen=True)
class Member:
    """A variant with what is known of it; `words` tell it apart from others of its group, empty
    for the only one."""

    variant: VariantEntry
    found: Evidence | Lack
    words: str = ""

    @property
    def evidence(self) -> Evidence | None:
        return self.found if isinstance(self.found, Evidence) else None

    @property
    def lack(self) -> str:
        return self.found.reason if isinstance(self.found, Lack) else ""

    @property
    def searched(self) -> bool:
        """Whether candidates competed, and not the winner and the default alone."""
        return self.evidence is not None and len(self.evidence.entry.trials) >= FEWEST_PLOTTED

    def trials(self) -> tuple[CandidateTrial, ...]:
        """The fastest first, then those without times in the order they were offered."""
        if self.evidence is None:
            return ()
        entry = self.evidence.entry
        scored = scores(entry.trials)
        made = [
            CandidateTrial(
                trial=trial,
                score=scored.get(trial.configuration),
                held=trial.configuration == self.variant.configuration,
                default=trial.configuration == entry.default,
                winner=trial.configuration == entry.winner,
            )
            for trial in entry.trials
        ]
        return tuple(sorted(made, key=lambda t: (t.score is None, t.score or 0.0)))


@dataclass(frozen=True)
class LaunchGroup:
    """Variants of one target and kernel that `launch_words` says the same of, those that were
    searched first."""

    target: str
    kernel: str
    words: str
    members: tuple[Member, ...]

    @property
    def searched(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if member.searched)

    @property
    def signatures(self) -> int:
        """How many signatures need a launch of the group."""
        return len({name for m in self.members for name in m.variant.signatures})


def group_launches(manifest: Manifest, records: Records) -> tuple[LaunchGroup, ...]:
    """Groups by target, kernel and geometry, whole sequences before long segments before short."""
    found: dict[tuple[str, str, str], list[VariantEntry]] = {}
    for variant in manifest.variants:
        key = variant.target, variant.launch.kernel, launch_words(variant.launch)
        found.setdefault(key, []).append(variant)
    groups = []
    for key, variants in found.items():
        texts = _telling([variant.launch for variant in variants])
        members = [
            Member(variant, records.find(variant), words)
            for variant, words in zip(variants, texts, strict=True)
        ]
        groups.append(LaunchGroup(*key, _ordered(members)))
    return tuple(sorted(groups, key=lambda g: (g.target, g.kernel, _place(g))))


def _telling(launches: Sequence[Launch]) -> list[str]:
    """Words for each launch of a group, completed where two would have the same."""
    texts = [relative_words(launch) for launch in launches]
    for text in {text for text in texts if texts.count(text) > 1}:
        same = [place for place, found in enumerate(texts) if found == text]
        for place in same:
            more = differences(launches[place], [launches[other] for other in same])
            texts[place] = ", ".join(filter(None, (text, more)))
    return texts


def _place(group: LaunchGroup) -> tuple[int, int, bool, int, str]:
    values = dict(group.members[0].variant.launch.constexprs)
    headdim, dstate, segment = (
        value if isinstance(value := values.get(name), int) else 0
        for name in ("HEADDIM", "DSTATE", "SEGMENT")
    )
    return headdim, dstate, segment > 0, -segment, group.words


def _ordered(members: Sequence[Member]) -> tuple[Member, ...]:
    return tuple(
        sorted(
            members,
            key=lambda m: (
                not m.searched, m.evidence is None, str(m.variant.launch),
                m.variant.variant.identity,
            ),
        )
    )  # fmt: skip
