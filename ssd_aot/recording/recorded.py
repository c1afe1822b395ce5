"""A recording: launches, tunings and the sources of their kernels, without data and paths."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ssd_aot.bundle.manifest import KernelText
from ssd_aot.errors import SpecError
from ssd_aot.launches import Configuration, Constant, Launch, canonical_json


@dataclass(frozen=True)
class RecordedKernel:
    """A kernel's source: Triton's hash over it and all that it calls, and its own text."""

    source_sha256: str
    text: KernelText

    def to_json(self) -> dict[str, Any]:
        return {"source": self.source_sha256, "text": self.text.sha256, "line": self.text.line}


def config_text(config: Mapping[str, Any]) -> str:
    """What Triton stores of a candidate, as canonical JSON; the constexprs are pairs, for their
    order enters Triton's keys."""
    return canonical_json({**config, "kwargs": [list(p) for p in dict(config["kwargs"]).items()]})


def config_of(text: str) -> dict[str, Any]:
    """The inverse of `config_text`."""
    config = json.loads(text)
    return {**config, "kwargs": dict(config["kwargs"])}


@dataclass(frozen=True)
class RecordedTuning:
    """One run of an autotuner. `key` is its tuning key as Python writes it; `offered` are the
    candidates as `config_text` spells them; `winner` is the place of the best.
    `reason` says why Triton can store no result."""

    kernel: str
    key: str
    offered: tuple[str, ...]
    winner: int | None = None
    reason: str = ""

    @property
    def values(self) -> tuple[Any, ...]:
        """The tuning key itself."""
        return tuple(ast.literal_eval(self.key))

    def to_json(self) -> dict[str, Any]:
        form: dict[str, Any] = {
            "kernel": self.kernel,
            "key": self.key,
            "offered": [json.loads(config) for config in self.offered],
        }
        if self.winner is not None:
            form["winner"] = self.winner
        if self.reason:
            form["reason"] = self.reason
        return form


@dataclass(frozen=True)
class RecordedLaunch:
    """A launch without what a candidate chooses. `candidates` are pairs of a place among those the
    tuning offered and the configuration it comes to; a launch that is not tuned has one, and no
    `tuning`. `given` are the options of the call in their order: Triton keeps kernels by them."""

    launch: Launch
    candidates: tuple[tuple[int, Configuration], ...]
    given: tuple[tuple[str, Constant], ...] = ()
    tuning: str = ""

    def to_json(self) -> dict[str, Any]:
        launch = self.launch
        form: dict[str, Any] = {
            "kernel": launch.kernel,
            "constexprs": {name: _form(value) for name, value in launch.constexprs},
            "arguments": {a.name: a.spelled() for a in launch.arguments},
            "options": {name: _form(value) for name, value in launch.options},
            "given": {name: _form(value) for name, value in self.given},
            "candidates": [[at, configuration.to_json()] for at, configuration in self.candidates],
        }
        if self.tuning:
            form["tuning"] = self.tuning
        return form


@dataclass(frozen=True)
class Recording:
    """All of it, in one order whatever order it was written in. `left_out` says of a kernel why it
    cannot be built from a recording; `folders` are where programs' files are looked for."""

    kernels: tuple[tuple[str, RecordedKernel], ...] = ()
    tunings: tuple[RecordedTuning, ...] = ()
    launches: tuple[RecordedLaunch, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    recorded_on: tuple[str, ...] = ()
    """The GPUs, by the names of targets."""
    folders: tuple[Path, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        def order(name: str, key: Any) -> None:
            object.__setattr__(self, name, tuple(sorted(set(getattr(self, name)), key=key)))

        order("kernels", lambda item: (item[0], item[1].source_sha256))
        order("tunings", lambda one: (one.kernel, one.key, one.offered))
        order("launches", lambda one: (one.launch.kernel, canonical_json(one.to_json())))
        order("left_out", None)
        order("recorded_on", None)

    @property
    def names(self) -> frozenset[str]:
        """Every kernel that the program ran, those that are left out among them."""
        return frozenset(name for name, _ in (*self.kernels, *self.left_out))

    def to_json(self) -> dict[str, Any]:
        return {
            "recorded_on": list(self.recorded_on),
            "kernels": {name: kernel.to_json() for name, kernel in self.kernels},
            "tunings": [tuning.to_json() for tuning in self.tunings],
            "launches": [launch.to_json() for launch in self.launches],
            "left_out": dict(self.left_out),
        }


def merged(recordings: Iterable[tuple[Recording, str]]) -> Recording:
    """One recording of several, each with the file it comes from.

    Raises SpecError where two hold other sources of one kernel, or other candidates of one tuning:
    what they recorded are two programs.
    """
    kernels: dict[str, tuple[RecordedKernel, str]] = {}
    tunings: dict[tuple[str, str], tuple[RecordedTuning, str]] = {}
    launches: dict[tuple[Launch, str], RecordedLaunch] = {}
    left_out: dict[str, str] = {}
    targets: set[str] = set()
    folders: list[Path] = []
    for recording, file in recordings:
        targets |= set(recording.recorded_on)
        folders += recording.folders
        left_out.update(recording.left_out)
        for name, kernel in recording.kernels:
            known, first = kernels.setdefault(name, (kernel, file))
            if known != kernel:
                raise _two_programs(f"the source of {name}", file, kernel.source_sha256[:12],
                                    f"{known.source_sha256[:12]}, as in {first}")  # fmt: skip
        for tuning in recording.tunings:
            place = tuning.kernel, tuning.key
            old, first = tunings.setdefault(place, (tuning, file))
            if (old.offered, old.reason) != (tuning.offered, tuning.reason):
                raise _two_programs(f"the candidates of {tuning.kernel}", file,
                                    f"{len(tuning.offered)} for {tuning.key}",
                                    f"{len(old.offered)}, as in {first}")  # fmt: skip
            if old.winner is None:
                tunings[place] = tuning, file
        for one in recording.launches:
            have = launches.get((one.launch, one.tuning), one)
            both = dict(have.candidates) | dict(one.candidates)
            launches[one.launch, one.tuning] = replace(have, candidates=tuple(sorted(both.items())))
    return Recording(
        tuple((name, kernel) for name, (kernel, _) in kernels.items()),
        tuple(tuning for tuning, _ in tunings.values()),
        tuple(launches.values()),
        tuple(left_out.items()),
        tuple(targets),
        tuple(dict.fromkeys(folders)),
    )


def _two_programs(what: str, file: str, found: str, wanted: str) -> SpecError:
    return SpecError(
        f"two recordings differ in {what}",
        where=file,
        found=found,
        wanted=wanted,
        mend="record both with the same release of the program, or build them apart",
    )


def _form(value: Constant) -> Any:
    """JSON has no infinities: they are {"float": "inf"}, as in a manifest."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value
