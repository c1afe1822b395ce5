"""`ssd-aot build`: plan, compile, tune where the GPU is, write."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ssd_aot import terminal
from ssd_aot.bundle.choosing import BUILTIN
from ssd_aot.commands.selecting import (
    WrittenPath,
    available_cores,
    crew_of,
    crew_options,
    notice_printer,
    read_selection,
    selection,
)
from ssd_aot.compilation.crews import Crew, Workers
from ssd_aot.errors import UsageError
from ssd_aot.spec import Spec
from ssd_aot.targets import Target
from ssd_aot.terminal import Level

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
@crew_options
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
    jobs: int | None,
    workers: Workers,
    ray_address: str | None,
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

        if workers != "local":
            raise UsageError("an engine's kernels are compiled on this host", where="--workers",
                             found=workers, wanted="local",
                             mend="drop --workers, or build builtin kernels")  # fmt: skip
        report = build_engine(
            spec, targets, place, jobs=jobs or available_cores(), keep_going=keep_going,
            max_spill_bytes=max_spill_bytes, records=found, require_tuned=require_tuned,
            tune_at_serve=tune_at_serve, show_progress=terminal.level() > Level.QUIET,
        )  # fmt: skip
    else:
        if tune_at_serve:
            raise UsageError("builtin kernels have no tuner at serve time",
                             where="--tune-at-serve", found="source builtin",
                             wanted="an engine's source",
                             mend="drop it, and see `ssd-aot tune`")  # fmt: skip
        with crew_of(workers, jobs, ray_address) as crew:
            if not no_tune and tune_where_possible(spec, targets, found, crew):
                found = find_records(records)
            report = build_bundle(
                spec, targets, place, jobs=crew.jobs, keep_going=keep_going,
                max_spill_bytes=max_spill_bytes, records=found, require_tuned=require_tuned,
                executor=crew.executor, on_progress=ProgressPrinter(),
            )  # fmt: skip
    for path, count in report.records:
        terminal.note(f"tuning: {count} choices from {path}")
    for note in report.notes:
        terminal.note(f"note: {note}")
    for dropped in report.dropped:
        terminal.note(f"dropped: {dropped}")
    shown = report.failures if terminal.is_verbose() else report.failures[:SHOWN_FAILURES]
    for failure in shown:
        terminal.warn(f"failed: {failure}")
    if len(report.failures) > len(shown):
        terminal.warn(f"failed: and {len(report.failures) - len(shown)} more, all shown with -v")
    if not report.reproducible:
        terminal.note(NOT_REPRODUCIBLE)
    if as_json:
        click.echo(json.dumps(report.to_json()))
    else:
        terminal.show(str(report))
    if report.failures:
        sys.exit(1)


def tune_where_possible(
    spec: Spec, targets: Sequence[Target], records: Sequence[RecordFile], crew: Crew
) -> bool:
    """Measure what no record has for those targets whose GPU the crew has; whether anything was."""
    from ssd_aot.progress import ProgressPrinter
    from ssd_aot.tuning.host import tune_missing

    reports = [
        tune_missing(
            spec, target, records, crew, on_progress=ProgressPrinter(), on_notice=notice_printer()
        )
        for target in targets
        if crew.has_gpu(target)
    ]
    for report in reports:
        if report is not None:
            click.echo(str(report), err=True)
    return any(reports)
