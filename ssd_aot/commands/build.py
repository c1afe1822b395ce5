"""`ssd-aot build`: plan, compile, tune where the GPU is, write."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ssd_aot.bundle.choosing import BUILTIN
from ssd_aot.commands.selecting import WrittenPath, available_cores, read_selection, selection
from ssd_aot.spec import Spec
from ssd_aot.targets import Target

if TYPE_CHECKING:
    from ssd_aot.tuning.choices import RecordFile

SHOWN_FAILURES = 5
NOT_REPRODUCIBLE = """\
note: this host does not let a program switch address randomisation off, so another build of code
      for sm_100 and later may choose other registers and have another digest
      mend: allow the system call personality, in a container with a seccomp profile that has it
      or --security-opt seccomp=unconfined"""


@click.command()
@selection
@click.option("--out", type=WrittenPath(), help="Bundle folder. [default: dist/NAME]")
@click.option("--jobs", type=click.IntRange(1), default=available_cores,
              show_default="the cores here", help="Parallel compilations.")  # fmt: skip
@click.option("--keep-going", is_flag=True, help="Write an incomplete bundle, and exit 1.")
@click.option("--max-spill", "max_spill_bytes", type=click.IntRange(0), metavar="BYTES",
              help="Fail launches that spill more a thread.")  # fmt: skip
@click.option("--tuning", "records", multiple=True, metavar="FILE",
              type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="A tuning record, asked before those in ./tuning and the package's own; may be "
              "repeated.")  # fmt: skip
@click.option("--no-tune", is_flag=True, help="Measure nothing, also where the target GPU is.")
@click.option("--require-tuned", is_flag=True,
              help="Fail unless every configuration was measured on its GPU.")  # fmt: skip
@click.option("--tune-at-serve", is_flag=True,
              help="For an engine's kernels: carry every candidate, and let the engine's autotuner "
              "measure them at the first launch.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def build(
    gpus: tuple[str, ...],
    specs: tuple[str, ...],
    source: str | None,
    out: Path | None,
    jobs: int,
    keep_going: bool,
    max_spill_bytes: int | None,
    records: tuple[Path, ...],
    no_tune: bool,
    require_tuned: bool,
    tune_at_serve: bool,
    as_json: bool,
) -> None:
    """Plan, compile, tune where the target GPU is here, and write a bundle; needs no GPU."""
    from ssd_aot.building import build as build_bundle
    from ssd_aot.progress import ProgressPrinter
    from ssd_aot.tuning.choices import find_records

    spec, targets = read_selection(gpus, specs, source)
    found = find_records(records)
    place = out or Path("dist") / "+".join(t.name for t in targets)
    if spec.source != BUILTIN:
        from ssd_aot.engines.building import build_engine

        report = build_engine(
            spec, targets, place, jobs=jobs, keep_going=keep_going,
            max_spill_bytes=max_spill_bytes, records=found, require_tuned=require_tuned,
            tune_at_serve=tune_at_serve, show_progress=True,
        )  # fmt: skip
    else:
        if not no_tune and tune_here(spec, targets, found, jobs):
            found = find_records(records)
        report = build_bundle(
            spec, targets, place, jobs=jobs, keep_going=keep_going,
            max_spill_bytes=max_spill_bytes, records=found, require_tuned=require_tuned,
            on_progress=ProgressPrinter(),
        )  # fmt: skip
    for path, count in report.records:
        click.echo(f"tuning: {count} choices from {path}", err=True)
    for note in report.notes:
        click.echo(f"note: {note}", err=True)
    for dropped in report.dropped:
        click.echo(f"dropped: {dropped}", err=True)
    for failure in report.failures[:SHOWN_FAILURES]:
        click.echo(f"failed: {failure}", err=True)
    if len(report.failures) > SHOWN_FAILURES:
        click.echo(f"failed: and {len(report.failures) - SHOWN_FAILURES} more", err=True)
    if not report.reproducible:
        click.echo(NOT_REPRODUCIBLE, err=True)
    click.echo(json.dumps(report.to_json()) if as_json else str(report))
    if report.failures:
        sys.exit(1)


def tune_here(
    spec: Spec, targets: Sequence[Target], records: Sequence[RecordFile], jobs: int
) -> bool:
    """Measure what no record has for those targets whose GPU is here; whether anything was."""
    from ssd_aot.progress import ProgressPrinter
    from ssd_aot.tuning.host import is_here, tune_missing

    reports = [
        tune_missing(spec, target, records, jobs=jobs, on_progress=ProgressPrinter())
        for target in targets
        if is_here(target)
    ]
    for report in reports:
        if report is not None:
            click.echo(str(report), err=True)
    return any(reports)
