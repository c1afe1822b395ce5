"""The last result of `ssd-aot bench`, read back from what its `--json` printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ssd_aot.bundle.json_readers import Misfit, each, json_object, sha256, table, text
from ssd_aot.errors import UsageError

T = TypeVar("T")

OURS = ("drop-in", "prepared")
"""The contestants that are this package's own two ways in."""


@dataclass(frozen=True)
class Span:
    """Median, first and third quartile, in microseconds."""

    median_us: float
    low_us: float
    high_us: float


@dataclass(frozen=True)
class BenchRow:
    """One contestant on one workload; `device` is None where only host time was taken."""

    workload: str
    contestant: str
    host: Span
    device: Span | None


@dataclass(frozen=True)
class BenchResults:
    """A benchmark's rows, the machine it ran on as (name, value), why contestants were absent, and
    the digest of the bundle that was measured, empty where the file does not say."""

    machine: tuple[tuple[str, str], ...]
    rows: tuple[BenchRow, ...]
    absent: tuple[tuple[str, str], ...]
    digest: str = ""

    @property
    def gpu(self) -> str:
        return dict(self.machine).get("GPU", "")

    @property
    def workloads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(row.workload for row in self.rows))

    def contestants(self, *, device: bool) -> tuple[str, ...]:
        """Those with device times, or all, in the order they entered."""
        return tuple(dict.fromkeys(r.contestant for r in self.rows if r.device or not device))

    def row(self, workload: str, contestant: str) -> BenchRow | None:
        found = (r for r in self.rows if (r.workload, r.contestant) == (workload, contestant))
        return next(found, None)


def read_bench(path: Path) -> BenchResults:
    """Raises `UsageError`, with file and field, for what is no result of a benchmark.

    Fields that this release does not know are left aside: they say more, not other things.
    """
    try:
        return _results(json.loads(path.read_text(encoding="utf-8")))
    except Misfit as misfit:
        where = f"{path}: {misfit.path}" if misfit.path else str(path)
        raise _unreadable(where, f"{misfit.what}: {misfit.found}", misfit.wanted) from misfit
    except json.JSONDecodeError as error:
        raise _unreadable(f"{path}:{error.lineno}", error.msg, "one JSON document") from error
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(str(path), str(error), "a readable file") from error


def _unreadable(where: str, found: str, wanted: str) -> UsageError:
    return UsageError(
        "the benchmark's result cannot be read",
        where=where,
        found=found,
        wanted=wanted,
        mend="give what `ssd-aot bench BUNDLE --json` printed",
    )


def _results(value: Any) -> BenchResults:
    rows = _field(value, "rows", each(_row))
    if not rows:
        raise Misfit("nothing was measured", "no rows", "one or more").inside("rows")
    return BenchResults(
        machine=_field(value, "machine", table(text)),
        rows=rows,
        absent=_field(value, "absent", table(text)),
        digest=_field(value, "digest", sha256) if "digest" in value else "",
    )


def _row(value: Any) -> BenchRow:
    return BenchRow(
        workload=_field(value, "workload", text),
        contestant=_field(value, "contestant", text),
        host=_field(value, "host", _span),
        device=_field(value, "device", lambda found: None if found is None else _span(found)),
    )


def _span(value: Any) -> Span:
    return Span(*(_field(value, name, _time) for name in ("median_us", "low_us", "high_us")))


def _time(value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value < float("inf"):
        raise Misfit("not a time", json.dumps(value), "microseconds above 0")
    return float(value)


def _field(value: Any, name: str, read: Callable[[Any], T]) -> T:
    fields = json_object(value)
    try:
        if name not in fields:
            raise Misfit("a field is missing", "nothing", "a value")
        return read(fields[name])
    except Misfit as misfit:
        raise misfit.inside(name) from None
