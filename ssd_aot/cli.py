"""The command line: parse, delegate, print. Results go to stdout, messages to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import ssd_aot
from ssd_aot.errors import SsdAotError, UsageError
from ssd_aot.selecting import available_cores, read_selection, selection
from ssd_aot.spec import Spec
from ssd_aot.targets import Target
from ssd_aot.tune_command import tune

if TYPE_CHECKING:
    from ssd_aot.tuning.choices import RecordFile

SHOWN_FAILURES = 5
NOT_REPRODUCIBLE = """\
note: this host does not let a program switch address randomisation off, so another build of code
      for sm_100 and later may choose other registers and have another digest
      mend: allow the system call personality, in a container with a seccomp profile that has it
      or --security-opt seccomp=unconfined"""
INTERRUPTED = 130
"""What shells report for a program that Ctrl-C ended: 128 and the number of SIGINT."""


class Commands(click.Group):
    """Turns the package's own errors into their message and exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SsdAotError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("\ninterrupted; a build that is run again continues", err=True)
            ctx.exit(INTERRUPTED)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(ssd_aot.__version__, prog_name="ssd-aot")
def main() -> None:
    """Ahead-of-time compiled Mamba2 SSD kernels."""


main.add_command(tune)


@main.command()
@selection
@click.option("--out", type=click.Path(path_type=Path), help="Bundle folder. [default: dist/NAME]")
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
    as_json: bool,
) -> None:
    """Plan, compile, tune where the target GPU is here, and write a bundle; needs no GPU."""
    from ssd_aot.building import build as build_bundle
    from ssd_aot.progress import ProgressPrinter
    from ssd_aot.tuning.choices import find_records

    spec, targets = read_selection(gpus, specs, source)
    found = find_records(records)
    if not no_tune and tune_here(spec, targets, found, jobs):
        found = find_records(records)
    place = out or Path("dist") / "+".join(t.name for t in targets)
    report = build_bundle(
        spec, targets, place, jobs=jobs, keep_going=keep_going,
        max_spill_bytes=max_spill_bytes, records=found, require_tuned=require_tuned,
        on_progress=ProgressPrinter(),
    )  # fmt: skip
    for path, count in report.records:
        click.echo(f"tuning: {count} choices from {path}", err=True)
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


@main.command()
@selection
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def plan(gpus: tuple[str, ...], specs: tuple[str, ...], source: str | None, as_json: bool) -> None:
    """Show what would be built and why; compiles nothing."""
    from ssd_aot.plan import make_plan

    spec, targets = read_selection(gpus, specs, source)
    made = make_plan(spec, targets)
    click.echo(json.dumps(made.to_json()) if as_json else made.render())


@main.command()
@click.argument("bundle")
@click.option("--spec", "specs", multiple=True, metavar="FILE",
              help="Check against this spec. [default: the one in the bundle]")  # fmt: skip
@click.option("--gpu", metavar="NAME", help="Check that the bundle serves this GPU.")
@click.option("--digest", metavar="SHA256", help="Check that it is exactly this bundle.")
@click.option("--run", "run_signatures", is_flag=True,
              help="Run every signature on the GPU here and check its results.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def verify(
    bundle: str,
    specs: tuple[str, ...],
    gpu: str | None,
    digest: str | None,
    run_signatures: bool,
    as_json: bool,
) -> None:
    """Check that a bundle is whole, untouched, complete and right for this host."""
    from ssd_aot.checking import check_bundle

    report = check_bundle(bundle, specs=specs, gpu=gpu, digest=digest, run=run_signatures)
    click.echo(json.dumps(report.to_json()) if as_json else str(report))
    if not report.passed:
        sys.exit(1)


@main.command()
@click.argument("bundle")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def inspect(bundle: str, as_json: bool) -> None:
    """Show what is inside a bundle."""
    from ssd_aot.bundle.store import Bundle
    from ssd_aot.inspecting import describe, render

    opened = Bundle.open(bundle)
    click.echo(json.dumps(describe(opened)) if as_json else render(opened))


@main.command()
@click.argument("bundle")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def bench(bundle: str, as_json: bool) -> None:
    """Measure host and device time beside the engines installed here; needs the GPU."""
    from ssd_aot.benching import bench as measure
    from ssd_aot.bundle.store import Bundle

    measured = measure(Bundle.open(bundle))
    click.echo(json.dumps(measured.to_json()) if as_json else str(measured))


@main.command()
@click.option("--from-config", "config", required=True, metavar="FILE",
              type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="A Hugging Face config.json.")  # fmt: skip
@click.option("--name", metavar="MODEL", help="The model's name. [default: the folder's]")
def spec(config: Path, name: str | None) -> None:
    """Write a spec from a Hugging Face model config to stdout."""
    from ssd_aot.models import spec_from_config

    try:
        values = json.loads(config.read_text(encoding="utf-8"))
        problem = "" if isinstance(values, dict) else type(values).__name__
    except (OSError, ValueError) as error:
        problem = str(error)
    if problem:
        raise UsageError("the model config is not a JSON object", where=str(config), found=problem,
                         wanted="a config.json", mend="pass the file of the model")  # fmt: skip
    click.echo(spec_from_config(values, name or config.resolve().parent.name), nl=False)


if __name__ == "__main__":
    main()
