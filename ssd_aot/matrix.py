"""The matrix: models × tensor-parallel sizes × axes, less what is excluded or impossible."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ssd_aot.axes import AXES, AxisValue, num_seqs_bounds, ordered
from ssd_aot.errors import SpecError
from ssd_aot.geometry import ModelGeometry

_CALL_AXES = ("seq_idx", "intermediate_states", "IS_CONT_BATCHED")


@dataclass(frozen=True)
class Exclusion:
    """Points to leave out: those with one of the values in every one of `matches`."""

    matches: tuple[tuple[str, tuple[AxisValue, ...]], ...]
    place: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        matches = sorted((name, ordered(name, values)) for name, values in self.matches)
        object.__setattr__(self, "matches", tuple(matches))

    def covers(self, point: Point) -> bool:
        facts = {**point.values, "model": point.model.name, "tp": point.tp}
        return all(facts[name] in values for name, values in self.matches)

    def to_json(self) -> dict[str, Any]:
        return {name: list(values) for name, values in self.matches}


@dataclass(frozen=True)
class Point:
    """One point of the matrix; `num_seqs` is the inclusive range that its text stands for."""

    model: ModelGeometry
    tp: int
    values: Mapping[str, AxisValue]
    num_seqs: tuple[int, int] = (1, 1)
    notice: str = ""

    @property
    def possible(self) -> bool:
        """`seq_idx` belongs to the batch call, intermediate states to the packed one."""
        packed = self.values["IS_CONT_BATCHED"]
        return not self.values["seq_idx" if packed else "intermediate_states"]


@dataclass(frozen=True)
class Section:
    """The models of one spec file with the axes, exclusions and limits that file has for them.

    Built in one order whatever order it was written in. `axes` holds all of AXES but chunk_size,
    which each model carries. `places` maps dotted fields to `file:line`, for messages only.
    """

    models: tuple[ModelGeometry, ...]
    axes: tuple[tuple[str, tuple[AxisValue, ...]], ...] = ()
    exclude: tuple[Exclusion, ...] = ()
    max_num_seqs: int = 1024
    max_num_batched_tokens: int = 8192
    places: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        # With one sequence at most there is no `many` to build by default.
        given = dict(self.axes)
        if self.max_num_seqs < 2:
            given.setdefault("num_seqs", ("1",))
        axes = tuple(
            (name, ordered(name, given.get(name, axis.default)))
            for name, axis in AXES.items()
            if name != "chunk_size"
        )
        object.__setattr__(self, "models", tuple(sorted(self.models, key=lambda m: m.name)))
        object.__setattr__(self, "axes", axes)
        unique = {json.dumps(entry.to_json(), sort_keys=True): entry for entry in self.exclude}
        object.__setattr__(self, "exclude", tuple(unique[key] for key in sorted(unique)))

    def place(self, name: str) -> str:
        """`file:line: field`, of the nearest enclosing field that was written."""
        at = name
        while at and at not in self.places:
            at = at.rpartition(".")[0]
        found = self.places.get(at, "")
        return f"{found}: {name}" if found else name

    def points(self) -> tuple[Point, ...]:
        """Every point that is possible and not excluded.

        Raises SpecError where an axis value is possible nowhere, an exclusion matches nothing,
        nothing remains, or a point asks for more tokens than a batch has.
        """
        points = tuple(point for point in self._combinations() if point.possible)
        self._check_reached(points)
        for entry in self.exclude:
            if not any(entry.covers(point) for point in points):
                raise SpecError(
                    "this exclusion matches nothing",
                    where=entry.place or "exclude",
                    found=json.dumps(entry.to_json()),
                    wanted="values that the matrix, the models and their tp have",
                    mend="remove it, or correct its values",
                )
        kept = [p for p in points if not any(entry.covers(p) for entry in self.exclude)]
        if not kept:
            raise SpecError(
                "nothing remains of the matrix",
                where=self.place("exclude"),
                found=f"{len(points)} points, all of them excluded",
                wanted="at least one point",
                mend="exclude less",
            )
        return tuple(self._with_num_seqs(point) for point in kept)

    def _combinations(self) -> Iterator[Point]:
        names = [name for name, _ in self.axes]
        for model in self.models:
            for tp, size in itertools.product(model.tp, model.chunk_size):
                for values in itertools.product(*(values for _, values in self.axes)):
                    chosen = dict(zip(names, values, strict=True))
                    yield Point(model, tp, {**chosen, "chunk_size": size})

    def _check_reached(self, points: tuple[Point, ...]) -> None:
        """A value that was asked for and can appear in no point is refused, not dropped."""
        axes = dict(self.axes)
        # Of the first two false asks for nothing; both values of the third ask for a call.
        demanded = [(name, True) for name in _CALL_AXES] + [("IS_CONT_BATCHED", False)]
        for name, value in demanded:
            if value not in axes[name] or any(p.values[name] == value for p in points):
                continue
            raise SpecError(
                f"{name} {json.dumps(value)} is possible nowhere in this matrix",
                where=self.place(f"matrix.{name}"),
                found=json.dumps({call: axes[call] for call in _CALL_AXES}),
                wanted="seq_idx with IS_CONT_BATCHED false, intermediate_states with true",
                mend=f"remove {json.dumps(value)}, or widen IS_CONT_BATCHED",
            )

    def _with_num_seqs(self, point: Point) -> Point:
        text = str(point.values["num_seqs"])
        low, high = num_seqs_bounds(text, self.max_num_seqs)
        notice = ""
        if point.values["lengths"] == "chunk_aligned":
            size = int(point.values["chunk_size"])
            fits = self.max_num_batched_tokens // size
            if text == "many" and low <= fits < high:
                notice = (
                    f"num_seqs many with chunk-aligned lengths ends at {fits}, not {high}: "
                    f"{fits} × {size} tokens fill max_num_batched_tokens "
                    f"{self.max_num_batched_tokens}"
                )
                high = fits
            self._check_tokens(low if low > fits else high, size)
        return Point(point.model, point.tp, point.values, (low, high), notice)

    def _check_tokens(self, num_seqs: int, chunk_size: int) -> None:
        if num_seqs * chunk_size <= self.max_num_batched_tokens:
            return
        raise SpecError(
            "chunk-aligned lengths need more tokens than a batch has",
            where=self.place("matrix.lengths"),
            found=f"num_seqs {num_seqs} × chunk_size {chunk_size} = {num_seqs * chunk_size} "
            f"tokens, {self.max_num_batched_tokens // num_seqs} a sequence available",
            wanted=f"at most max_num_batched_tokens, {self.max_num_batched_tokens}",
            mend=f"num_seqs up to {self.max_num_batched_tokens // chunk_size}, a smaller "
            "chunk_size, a larger max_num_batched_tokens, or lengths: any",
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "models": {model.name: model.to_json() for model in self.models},
            "matrix": {name: list(values) for name, values in self.axes},
            "exclude": [entry.to_json() for entry in self.exclude],
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Section:
        return cls(
            models=tuple(ModelGeometry.from_json(n, m) for n, m in data["models"].items()),
            axes=tuple((name, tuple(values)) for name, values in data["matrix"].items()),
            exclude=tuple(
                Exclusion(tuple((name, tuple(values)) for name, values in entry.items()))
                for entry in data["exclude"]
            ),
            max_num_seqs=data["max_num_seqs"],
            max_num_batched_tokens=data["max_num_batched_tokens"],
        )
