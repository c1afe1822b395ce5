"""What tuning an engine's kernels comes to: each group of launches with the batches that it is
judged and timed on, and those of its candidates that compile and fit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ssd_aot.bundle.manifest import VariantEntry
from ssd_aot.engines.groups import TuningGroup
from ssd_aot.engines.serving_calls import ServingBatch, check_batches
from ssd_aot.engines.tracing import Reached
from ssd_aot.launches import Configuration
from ssd_aot.signatures import Signature
from ssd_aot.tuning.attempts import Searched
from ssd_aot.tuning.records import Subject, Trial, offered_digest
from ssd_aot.tuning.workloads import lengths_around

TIMED_SHAPES = ((1, 512), (4, 2048), (16, 512))
"""(sequences, tokens of each): few tokens, and a full step of few sequences and of many."""

FEWEST_CHECKS = 4
"""Batches that a candidate is judged on, however few its launches are."""

NOT_BUILT = "does not compile, or does not fit"


@dataclass(frozen=True)
class UsableCandidate:
    """A candidate that compiles and fits; what its code needs where that is known."""

    configuration: Configuration
    registers: int | None = None
    spill_bytes: int | None = None


@dataclass(frozen=True)
class PlannedGroup:
    """A group, the candidates that can run in the tuner's order, and why the others cannot.

    `checks` reach each launch of `judged`, whose identities are sorted; `timed` reach the group.
    """

    group: TuningGroup
    usable: tuple[UsableCandidate, ...]
    unusable: tuple[Trial, ...]
    checks: tuple[ServingBatch, ...]
    timed: tuple[ServingBatch, ...]
    judged: tuple[str, ...]

    @property
    def kin(self) -> tuple[object, ...]:
        """Equal for groups whose keys differ in dtypes alone: in those of states, and in whether
        initial and final ones are there, which leave the order of speeds alone."""
        values = [value for value in self._key if not _is_dtype(value)]
        return self.group.kernel, json.dumps(values), self.group.candidates

    @property
    def leading(self) -> tuple[int, int]:
        """Greatest for the group whose search the others of its kin follow: that with most tensors,
        and with most of them in float32."""
        dtypes = [value for value in self._key if _is_dtype(value)]
        return len(dtypes), dtypes.count("torch.float32")

    @property
    def _key(self) -> list[object]:
        assert self.group.tuning is not None
        return list(json.loads(self.group.tuning.tuning_key))

    def searched(self, engine: str) -> Searched:
        """The subject of its entry; `engine` is the engine's version."""
        group = self.group
        assert group.tuning is not None
        subject = Subject(
            identity=group.identity,
            kernel=group.kernel,
            launch=str(group),
            source=group.launches[0].captured.source_sha256,
            offered=offered_digest(group.candidates),
            tuning=group.tuning.tuning_key,
            engine=engine,
            judged=self.judged,
        )
        return Searched(subject, group.candidates, self.usable[0].configuration)


def every_check(signatures: Iterable[Signature]) -> tuple[ServingBatch, ...]:
    """Those of all signatures; models of one geometry share theirs. What comes first is preferred:
    most heads, and initial states."""
    bare = {replace(s, model="", tp=1): s for s in reversed(tuple(signatures))}
    ordered = sorted(bare.values(), key=lambda s: (-s.nheads, not s.has_initstates, s.id))
    return tuple(batch for signature in ordered for batch in check_batches(signature))


def plan_groups(
    groups: Sequence[TuningGroup],
    batches: Sequence[ServingBatch],
    reached: Sequence[Reached],
    built: Mapping[str, Sequence[VariantEntry]] | None = None,
    reasons: Mapping[str, str] | None = None,
) -> tuple[tuple[PlannedGroup, ...], tuple[TuningGroup, ...]]:
    """The groups that have a choice to be measured, in the order in which they are: kernels with
    most candidates first, which engines give to those that take most of the time, and what leads
    before its kin. Then the groups that no batch reaches which runs.

    `built` maps the identity of a launch to the variants of it that can run, all of them where it
    is not given; `reasons` tell, by "KERNEL [CONFIGURATION]", why others cannot.
    """
    planned: list[PlannedGroup] = []
    apart: list[TuningGroup] = []
    # An engine may plan a call that ends at a launch of which no candidate compiles.
    never = {
        launch.captured.launch.identity
        for group in groups for launch in group.launches
        if built is not None and not built.get(launch.captured.launch.identity)
    }  # fmt: skip
    runs = {
        batch: found
        for batch, found in zip(batches, reached, strict=True)
        if never.isdisjoint(identity for identity, _ in found)
    }
    for group in groups:
        if not group.identity or len(group.candidates) < 2:
            continue
        assert group.tuning is not None
        own = {(t.captured.launch.identity, group.tuning.key) for t in group.launches}
        reaching = {
            batch: {identity for identity, _ in found & own}
            for batch, found in runs.items()
            if found & own
        }
        usable, unusable = _candidates(group, built, reasons or {})
        if not reaching or not usable:
            apart.append(group)
            continue
        planned.append(
            PlannedGroup(
                group, usable, unusable, _checks(reaching), _timed(tuple(reaching)),
                tuple(sorted(set[str]().union(*reaching.values()))),
            )
        )  # fmt: skip
    planned.sort(key=_order)
    return tuple(planned), tuple(apart)


def _order(one: PlannedGroup) -> tuple[object, ...]:
    kernel, values, _ = one.kin
    tensors, wide = one.leading
    return -len(one.group.candidates), kernel, values, -tensors, -wide, str(one.group)


def _is_dtype(value: object) -> bool:
    return isinstance(value, str) and value.startswith("torch.")


def _candidates(
    group: TuningGroup,
    built: Mapping[str, Sequence[VariantEntry]] | None,
    reasons: Mapping[str, str],
) -> tuple[tuple[UsableCandidate, ...], tuple[Trial, ...]]:
    usable: list[UsableCandidate] = []
    unusable: list[Trial] = []
    for configuration in group.candidates:
        if built is None:
            usable.append(UsableCandidate(configuration))
            continue
        code = [
            next((e.object for e in built.get(identity, ()) if e.configuration == configuration),
                 None)
            for identity in (t.captured.launch.identity for t in group.launches)
        ]  # fmt: skip
        there = [one for one in code if one is not None]
        if len(there) == len(code):
            usable.append(
                UsableCandidate(
                    configuration,
                    max((c.registers for c in there if c.registers is not None), default=None),
                    max((c.spill_bytes for c in there if c.spill_bytes is not None), default=None),
                )
            )
        else:
            reason = reasons.get(f"{group.kernel} [{configuration}]", NOT_BUILT)
            unusable.append(Trial(configuration, rejected=reason))
    return tuple(usable), tuple(unusable)


def _checks(reaching: Mapping[ServingBatch, set[str]]) -> tuple[ServingBatch, ...]:
    """As few as reach every launch that all together reach, then others up to `FEWEST_CHECKS` that
    are most unlike those: by the kind of their lengths, and the fewest heads."""
    left = set[str]().union(*reaching.values())
    taken: list[ServingBatch] = []
    while left:
        # The first of equals, as max() takes it, is the preferred.
        best = max(reaching, key=lambda batch: len(reaching[batch] & left))
        taken.append(best)
        left -= reaching[best]
    fewest = min(batch.signature.nheads for batch in reaching)
    others = [batch for batch in reaching if batch not in taken]
    while others and len(taken) < FEWEST_CHECKS:
        best = max(others, key=partial(_news, taken, fewest))
        taken.append(best)
        others.remove(best)
    return tuple(taken)


def _news(taken: Sequence[ServingBatch], fewest: int, batch: ServingBatch) -> int:
    """How unlike those taken a batch is."""
    kinds = {one.seed for one in taken}
    heads = {one.signature.nheads for one in taken}
    smallest = batch.signature.nheads == fewest and fewest not in heads
    return 2 * (batch.seed not in kinds) + smallest


def _timed(reaching: Sequence[ServingBatch]) -> tuple[ServingBatch, ...]:
    """Few tokens and many with the most heads, and a full step with the fewest."""
    ranges = [batch.signature.num_seqs for batch in reaching]
    sequences = min(low for low, _ in ranges), max(high for _, high in ranges)
    # Serving keeps final states and calls as most layers do; the others are timed where they are
    # alone, and so is a single sequence.
    served = sorted(reaching, key=lambda batch: (not batch.final_states, batch.alternate))
    served.sort(key=lambda batch: batch.signature.num_seqs[1] == 1)
    first = max(served, key=lambda batch: batch.signature.nheads)
    last = min(served, key=lambda batch: batch.signature.nheads)
    found: dict[str, ServingBatch] = {}
    for batch, shapes in ((first, TIMED_SHAPES), (last, TIMED_SHAPES[1:2])):
        for count, length in shapes:
            lengths = lengths_around(batch.signature, sequences, count, length)
            timed = replace(batch, lengths=lengths, decode_tokens=1, seed=0)
            found.setdefault(timed.name, timed)
    return tuple(found.values())
