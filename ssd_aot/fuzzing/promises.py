"""What a spec promises to serve, read from the spec itself: deployments, and batches of each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ssd_aot.axes import AxisValue, num_seqs_bounds
from ssd_aot.geometry import ModelGeometry
from ssd_aot.matrix import Section
from ssd_aot.spec import Spec

OF_BATCHES = ("HAS_INITSTATES", "num_seqs")
"""Axes that change from step to step; the others stay for a deployment."""


class Reach(NamedTuple):
    """Batches of `low`..`high` sequences, with or without initial states."""

    initial_states: bool
    low: int
    high: int


@dataclass(frozen=True)
class Deployment:
    """A model served one way: all that stays between the steps of a server.

    `values` are the axes of the spec but for those of OF_BATCHES, with chunk_size, and with `same`
    resolved to a dtype. `nheads` and `ngroups` are one rank's. `max_num_seqs` and
    `max_num_batched_tokens` are the spec's; the latter is what a server has when nobody says.
    """

    model: ModelGeometry
    tp: int
    nheads: int
    ngroups: int
    values: tuple[tuple[str, AxisValue], ...]
    reaches: tuple[Reach, ...]
    max_num_seqs: int
    max_num_batched_tokens: int

    def __hash__(self) -> int:
        # Equal deployments have equal ids; hashing every field at each look-up takes too long.
        return hash((self.model.name, self.tp, self.values))

    @cached_property
    def axes(self) -> Mapping[str, Any]:
        """`values` by name."""
        return dict(self.values)

    @property
    def unit(self) -> int:
        """What every sequence's tokens are a multiple of."""
        return int(self.axes["chunk_size"]) if self.axes["lengths"] == "chunk_aligned" else 1

    def reaches_batch(self, initial_states: bool, sequences: int) -> bool:
        """Whether batches of so many sequences, with or without initial states, are promised."""
        return any(
            reach.initial_states == initial_states and reach.low <= sequences <= reach.high
            for reach in self.reaches
        )


def deployments(spec: Spec) -> tuple[Deployment, ...]:
    """Every deployment that the spec promises some batch of."""
    return tuple(
        found
        for section in spec.sections
        for model in section.models
        for tp in model.tp
        for found in _of_model(section, model, tp)
    )


def _of_model(section: Section, model: ModelGeometry, tp: int) -> Iterator[Deployment]:
    axes = {**dict(section.axes), "chunk_size": model.chunk_size}
    lasting = [name for name in axes if name not in OF_BATCHES]
    nheads, ngroups = model.per_rank(tp)
    for chosen in itertools.product(*(axes[name] for name in lasting)):
        values = dict(zip(lasting, chosen, strict=True))
        if values["seq_idx" if values["IS_CONT_BATCHED"] else "intermediate_states"]:
            continue
        reaches = tuple(_reaches(section, model, tp, values))
        if not reaches:
            continue
        for axis in ("dt_dtype", "param_dtype"):
            values[axis] = values["dtype"] if values[axis] == "same" else values[axis]
        yield Deployment(
            model=model,
            tp=tp,
            nheads=nheads,
            ngroups=ngroups,
            values=tuple(values.items()),
            reaches=reaches,
            max_num_seqs=section.max_num_seqs,
            max_num_batched_tokens=section.max_num_batched_tokens,
        )


def _reaches(
    section: Section, model: ModelGeometry, tp: int, values: Mapping[str, AxisValue]
) -> Iterator[Reach]:
    axes = dict(section.axes)
    for initial, text in itertools.product(axes["HAS_INITSTATES"], axes["num_seqs"]):
        facts = {
            **values, "HAS_INITSTATES": initial, "num_seqs": text, "model": model.name, "tp": tp
        }  # fmt: skip
        if any(
            all(facts[name] in left_out for name, left_out in entry.matches)
            for entry in section.exclude
        ):
            continue
        low, high = num_seqs_bounds(str(text), section.max_num_seqs)
        if values["lengths"] == "chunk_aligned":
            high = min(high, section.max_num_batched_tokens // int(values["chunk_size"]))
        if low <= high:
            yield Reach(bool(initial), low, high)
