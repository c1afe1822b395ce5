"""Making a report: read, render, write in one step."""

from __future__ import annotations

import importlib
import os
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ssd_aot.bundle.store import Bundle
from ssd_aot.errors import HostError
from ssd_aot.report.bench_results import read_bench
from ssd_aot.report.vocabulary import size
from ssd_aot.tuning.choices import find_records

NEEDED = ("jinja2", "markupsafe", "matplotlib")
"""What the extra `report` brings, by its modules."""


@dataclass(frozen=True)
class MadeReport:
    """A report that was written: of which bundle, where, and its size."""

    path: str
    digest: str
    bytes: int
    records: tuple[str, ...]
    bench: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        with_bench = f", with {self.bench}" if self.bench else ""
        return f"{self.path}: {size(self.bytes)}{with_bench}\ndigest {self.digest}"


def make_report(
    bundle: str, out: Path, *, records: Sequence[Path] = (), bench_file: Path | None = None
) -> MadeReport:
    """Write the page about the bundle to `out`, in place of what is there.

    Tuning records are found as `build` finds them, `records` first. Raises `BundleError` for what
    is no bundle, `UsageError` for a file that is no record or no benchmark, `HostError` where the
    libraries are missing or the page cannot be written.
    """
    opened = Bundle.open(bundle)
    found = find_records(records)
    bench = read_bench(bench_file) if bench_file else None
    _check_libraries()
    # Imported here: a host that only serves has none of the libraries.
    from ssd_aot.report.page import render_page

    content = render_page(opened, found, bench).encode()
    _write(out, content)
    return MadeReport(
        path=str(out),
        digest=opened.digest,
        bytes=len(content),
        records=tuple(str(file.path) for file in found),
        bench=str(bench_file) if bench_file else "",
    )


def _check_libraries() -> None:
    for name in NEEDED:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise HostError(
                "a report needs libraries that are not installed here",
                where="ssd-aot report",
                found=str(error),
                wanted="jinja2 and matplotlib",
                mend="pip install 'ssd-aot[report]'",
            ) from error


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(content)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise HostError(
            "the report cannot be written",
            where=str(path),
            found=error.strerror or str(error),
            wanted=f"a place for a file of {len(content)} bytes",
            mend="give another file with --out",
        ) from error
