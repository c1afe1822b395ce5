"""The section on candidates: for each kernel its groups of launches, with plots and tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from ssd_aot.report.candidates_figure import candidates_figure, describe, tag
from ssd_aot.report.launch_groups import CandidateTrial, LaunchGroup, Member
from ssd_aot.report.launch_wording import PURPOSES, compact_words, short_name, telling
from ssd_aot.report.painting import Drawing, Painter
from ssd_aot.report.vocabulary import listed, microseconds, plural, status_kind
from ssd_aot.tuning.records import Session

FEW_FIGURES = 8
"""Up to so many plots stand open; of more, each group is opened by its reader."""


@dataclass(frozen=True)
class Search:
    """One launch whose candidates competed: the plot, what was tried, and the numbers."""

    member: Member
    drawing: Drawing
    caption: str
    batches: tuple[str, ...]
    rows: tuple[tuple[str, str, tuple[str, ...], str], ...]
    rejections: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class GroupView:
    """A group of launches as the page shows it; `summary` is what a closed one still says."""

    group: LaunchGroup
    title: str
    summary: str
    searches: tuple[Search, ...]

    @property
    def configuration(self) -> str:
        """What all launches of the group hold, empty where they differ."""
        held = {str(member.variant.configuration) for member in self.group.members}
        return held.pop() if len(held) == 1 else ""


@dataclass(frozen=True)
class KernelView:
    """A kernel by the end of its name, with what it does where that is known here."""

    name: str
    purpose: str
    groups: tuple[GroupView, ...]


@dataclass(frozen=True)
class CandidateSection:
    """All kernels, where and with what was measured, and whether groups with plots stand open."""

    kernels: tuple[KernelView, ...]
    sessions: tuple[str, ...]
    outcome: str
    open: bool


def candidate_section(groups: Sequence[LaunchGroup], painter: Painter) -> CandidateSection:
    several = len({group.target for group in groups}) > 1
    order = list(PURPOSES)
    names = sorted(
        {group.kernel for group in groups},
        key=lambda name: (order.index(name) if name in order else len(order), name),
    )
    kernels = tuple(
        KernelView(
            short_name(name),
            PURPOSES.get(name, ""),
            tuple(_group_view(g, several, painter) for g in groups if g.kernel == name),
        )
        for name in names
    )
    figures = sum(len(view.searches) for kernel in kernels for view in kernel.groups)
    members = [member for group in groups for member in group.members]
    sessions = {m.evidence.entry.session: None for m in members if m.evidence}
    return CandidateSection(
        kernels, tuple(sorted(map(session_words, sessions))), _outcome(members),
        figures <= FEW_FIGURES,
    )  # fmt: skip


def session_words(session: Session) -> str:
    """Where and with what a measurement was made."""
    return (
        f"{session.device}, driver {session.driver}, {session.date[:10]}; candidates compiled by "
        f"Triton {session.triton_version} with {session.ptxas_version}"
    )


def batch_words(name: str) -> str:
    """`128h 3x8190` in words: heads on the rank, sequences, tokens in all."""
    match = re.fullmatch(r"(\d+)h (\d+)x(\d+)", name)
    if match is None:
        return name
    heads, sequences, tokens = map(int, match.groups())
    return f"{plural(heads, 'head')}, {plural(sequences, 'sequence')}, {plural(tokens, 'token')}"


def chosen_words(member: Member) -> str:
    """How a launch's configuration was chosen, as the manifest has it."""
    tuning = member.variant.tuning
    checked = "checked" if tuning.checked else "unchecked"
    return f"{tuning.status}, {checked}"


def gain_words(member: Member) -> str:
    """In a sentence, what the choice gained over the default, from the manifest's own figures."""
    tuning = member.variant.tuning
    if tuning.median_us is None:
        return "Its time was not measured."
    took = f"Mean time {microseconds(tuning.median_us)} µs"
    if tuning.default_us is None:
        return f"{took}; the default's was not measured."
    if tuning.median_us == tuning.default_us:
        return f"{took}, as the default."
    return f"{took}, the default's {microseconds(tuning.default_us)} µs."


def time_words(value: float | None) -> str:
    return "not measured" if value is None else microseconds(value)


def _group_view(group: LaunchGroup, several: bool, painter: Painter) -> GroupView:
    title = group.words[:1].upper() + group.words[1:] or "All launches"
    if several:
        title += f" · {group.target}"
    searches = tuple(_search(member, title, painter) for member in group.searched)
    return GroupView(group, title, _summary(group), searches)


def _summary(group: LaunchGroup) -> str:
    parts = [plural(len(group.members), "launch", "launches")]
    for member in group.searched[:1]:
        trials = member.trials()
        rejected = sum(trial.score is None for trial in trials)
        parts.append(plural(len(trials), "candidate"))
        if rejected:
            parts.append(f"{rejected} rejected")
    kinds = {status_kind(member.variant.tuning.status) for member in group.members}
    if kinds == {"default"}:
        parts.append("never measured")
    gains = [
        m.variant.tuning.default_us / m.variant.tuning.median_us
        for m in group.members
        if m.variant.tuning.default_us and m.variant.tuning.median_us
    ]
    if gains:
        parts.append(_gain(max(gains)))
    return " · ".join(parts)


def _gain(most: float) -> str:
    if most == 1:
        return "the default won"
    if most < 1.005:
        return "another won, by less than 1%"
    return f"another won, up to {most:.2f} times as fast"


def _search(member: Member, title: str, painter: Painter) -> Search:
    assert member.evidence is not None
    entry, trials = member.evidence.entry, member.trials()
    parameters = telling([trial.configuration for trial in trials])
    caption = f"Searched on the launch with {member.words}." if member.words else ""
    if len(trials) < entry.offered_count:
        caption += f" {len(trials)} of {entry.offered_count} candidates offered were tried."
    for caveat in member.evidence.caveats:
        caption += f" Note: {caveat}."
    return Search(
        member=member,
        drawing=painter.both(partial(candidates_figure, member), f"{entry.kernel}: {title}",
                             describe(member)),
        caption=caption,
        batches=tuple(map(batch_words, entry.workloads)),
        rows=tuple(_row(trial, parameters, len(entry.workloads)) for trial in trials),
        rejections=_rejections(trials, parameters),
    )  # fmt: skip


def _row(
    trial: CandidateTrial, parameters: Sequence[str], batches: int
) -> tuple[str, str, tuple[str, ...], str]:
    """Words, tag, a time for each batch, and the largest error of a candidate."""
    times = tuple(map(microseconds, trial.trial.times_us)) or ("–",) * batches
    error = "–" if trial.trial.error is None else f"{trial.trial.error:.1e}"
    return compact_words(trial.configuration, parameters), tag(trial), times, error


def _rejections(
    trials: Sequence[CandidateTrial], parameters: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """Each reason with the candidates that were rejected for it."""
    found: dict[str, list[str]] = {}
    for trial in trials:
        if trial.score is None:
            reason = trial.trial.rejected or "not timed, and the record does not say why"
            found.setdefault(reason, []).append(compact_words(trial.configuration, parameters))
    return tuple((reason, "; ".join(names)) for reason, names in found.items())


def _outcome(members: Sequence[Member]) -> str:
    """In a sentence, what tuning was worth, from the manifest's own figures."""
    pairs = [
        (m.variant.tuning.default_us, m.variant.tuning.median_us)
        for m in members
        if m.variant.tuning.default_us and m.variant.tuning.median_us
    ]
    if not pairs:
        return "The bundle holds no measured times."
    gains = [default / taken for default, taken in pairs if default != taken]
    won = len(pairs) - len(gains)
    parts = [f"the default won {won}"] if won else []
    if gains:
        parts.append(
            f"other candidates won {len(gains)}, making the operation up to {max(gains):.2f} "
            "times as fast"
        )
    return f"Of {plural(len(pairs), 'measured launch', 'measured launches')}, {listed(parts)}."
