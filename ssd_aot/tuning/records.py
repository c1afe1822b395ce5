"""Tuning records: what was measured on one GPU for one source, and how two records become one.

A record holds one entry a launch: every candidate tried, its times or why it was rejected, and the
winner. An engine's record holds one for each kernel and tuning key instead, since launches that
share a key share one choice, and one launch may be tuned under several keys. Times are those of the
whole operation that the launch is part of, since kernels are judged and timed through it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from math import exp, log
from typing import Any

from ssd_aot.bundle.manifest import Toolchain
from ssd_aot.errors import UsageError
from ssd_aot.launches import Configuration, Launch, canonical_json


@dataclass(frozen=True)
class Session:
    """Where and with what a measurement was made: UTC date, the GPU's name as CUDA reports it, its
    driver, and what compiled the candidates."""

    date: str
    device: str
    driver: str
    triton_version: str
    triton_content: str
    ptxas_version: str
    environment: tuple[tuple[str, str], ...] = ()

    @cached_property
    def id(self) -> str:
        return _digest(asdict(self))[:12]

    @property
    def compiler(self) -> tuple[object, ...]:
        """What makes two sessions' code the same: by content, not by the version string."""
        return self.triton_content, self.ptxas_version, self.environment

    @classmethod
    def of(cls, toolchain: Toolchain, *, date: str, device: str, driver: str) -> Session:
        own = {f.name for f in fields(cls)} - {"date", "device", "driver"}
        values = {name: getattr(toolchain, name) for name in own}
        return cls(date=date, device=device, driver=driver, **values)


@dataclass(frozen=True)
class Trial:
    """One candidate of one launch: `times_us`, the device time of the operation for each workload
    of the entry, or `rejected`, the reason it never competed.

    `error` is the largest relative error against the reference, None where nothing finite came
    out; `repeats` counts the measurements whose median each time is.
    """

    configuration: Configuration
    times_us: tuple[float, ...] = ()
    rejected: str = ""
    error: float | None = None
    registers: int | None = None
    spill_bytes: int | None = None
    repeats: int = 1

    @property
    def mean_us(self) -> float | None:
        """The geometric mean over the workloads."""
        return geometric_mean(self.times_us) if self.times_us else None


@dataclass(frozen=True)
class Basis:
    """What the measurements of a launch stand on: with another one they say nothing for sure.

    `launch` is the launch's identity (see `Subject.basis`); `source` the sha256 of its kernel's
    source; `offered` that of the candidate list that was searched; `compiler` and `device` as in
    `Session`.
    """

    launch: str
    source: str
    offered: str
    compiler: tuple[object, ...]
    device: str

    @cached_property
    def id(self) -> str:
        return _digest(asdict(self))


@dataclass(frozen=True)
class Subject:
    """What one entry is about; fields as in `Entry`."""

    identity: str
    kernel: str
    launch: str
    source: str
    offered: str
    tuning: str = ""
    engine: str = ""
    judged: tuple[str, ...] = ()

    def basis(self, session: Session) -> Basis:
        """An engine's other kernels, which run with the one that is measured, are its version's;
        and what was right in some launches may be wrong in others."""
        stands_on = self.identity
        if self.tuning:
            stands_on = _digest([self.identity, self.engine, self.judged])
        return Basis(stands_on, self.source, self.offered, session.compiler, session.device)


@dataclass(frozen=True)
class Entry:
    """All that was measured for one launch. `winner` is None where no candidate was right;
    `launch` is its readable form, `default` the candidate taken untuned.

    Of an engine's kernel, `tuning` is the key of its tuner as JSON, `engine` the engine's version,
    and `judged` the identities of the launches, sorted, that each candidate was judged in;
    `identity` is that of kernel and key (see `tuning_identity`).
    """

    identity: str
    kernel: str
    launch: str
    session: Session
    source: str
    offered: str
    offered_count: int
    workloads: tuple[str, ...]
    default: Configuration
    winner: Configuration | None
    trials: tuple[Trial, ...]
    tuning: str = ""
    engine: str = ""
    judged: tuple[str, ...] = ()

    @property
    def basis(self) -> Basis:
        subject = Subject(
            self.identity, self.kernel, self.launch, self.source, self.offered, self.tuning,
            self.engine, self.judged,
        )  # fmt: skip
        return subject.basis(self.session)

    def trial(self, configuration: Configuration | None) -> Trial | None:
        return next((t for t in self.trials if t.configuration == configuration), None)

    @property
    def rank(self) -> tuple[bool, str, str]:
        """Of two entries for one launch the greater is kept: one with a winner before one without,
        then the later date, then by content, so that the order of merging is no matter."""
        return self.winner is not None, self.session.date, _digest(asdict(self))


@dataclass(frozen=True)
class FormPoint:
    """Both forms of one call, timed: device times in microseconds. `tokens` are in all."""

    geometry: str
    heads: int
    sequences: int
    tokens: int
    walk_us: float
    segments_us: float
    date: str

    @property
    def place(self) -> tuple[str, int, int, int]:
        return self.geometry, self.heads, self.sequences, self.tokens


@dataclass(frozen=True)
class Record:
    """Entries in the order of kernel and readable launch, form points in that of their place."""

    gpu: str
    source: str
    entries: tuple[Entry, ...] = ()
    forms: tuple[FormPoint, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.gpu}.{self.source}"

    def entry(self, launch: Launch) -> Entry | None:
        return self.entry_of(launch.identity)

    def entry_of(self, identity: str) -> Entry | None:
        """The entry of a launch's identity, or of a `tuning_identity`."""
        return self._by_identity.get(identity)

    @cached_property
    def _by_identity(self) -> dict[str, Entry]:
        return {entry.identity: entry for entry in self.entries}

    def with_entries(self, entries: Iterable[Entry]) -> Record:
        """These entries in place of those for the same launches."""
        kept = self._by_identity | {entry.identity: entry for entry in entries}
        return Record(self.gpu, self.source, _sorted(kept.values()), self.forms)


def merge(first: Record, second: Record) -> Record:
    """Both as one: commutative, associative, and a record merged with itself is that record.

    Raises `UsageError` for records of different GPUs or sources.
    """
    if first.name != second.name:
        raise UsageError(
            "these records cannot be merged",
            where="--merge",
            found=f"{first.name} and {second.name}",
            wanted="records of one GPU and one source",
            mend="keep one file a GPU and source",
        )
    entries: dict[str, Entry] = {}
    for entry in (*first.entries, *second.entries):
        known = entries.setdefault(entry.identity, entry)
        entries[entry.identity] = max(known, entry, key=lambda e: e.rank)
    points: dict[tuple[str, int, int, int], FormPoint] = {}
    for point in (*first.forms, *second.forms):
        points[point.place] = max(
            points.setdefault(point.place, point),
            point,
            key=lambda p: (p.date, p.walk_us, p.segments_us),
        )
    forms = tuple(points[place] for place in sorted(points))
    return Record(first.gpu, first.source, _sorted(entries.values()), forms)


def _sorted(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    return tuple(sorted(entries, key=lambda e: (e.kernel, e.launch, e.identity)))


def geometric_mean(values: Sequence[float]) -> float:
    return exp(sum(map(log, values)) / len(values))


def tuning_identity(kernel: str, tuning: str) -> str:
    """The identity of an engine's kernel ("module:function") under a tuning key, given as JSON."""
    return _digest({"kernel": kernel, "tuning": tuning})


def offered_digest(configurations: Sequence[Configuration]) -> str:
    """sha256 over a candidate list, in its order."""
    return _digest([c.to_json() for c in configurations])


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
