"""The command line: parse, delegate, print. Results go to stdout, messages to stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

import ssd_aot
from ssd_aot.errors import SsdAotError, UsageError
from ssd_aot.spec import Spec, load_spec, resolve_spec
from ssd_aot.targets import Target, target

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


def selection(command: Any) -> Any:
    """The options that select what is built: the same for every command that plans."""
    for option in (
        click.option("--source", metavar="NAME", help="Overrides the spec's source."),
        click.option(
            "--spec", "specs", multiple=True, metavar="FILE",
            help="A spec file or the name of a shipped one; may be repeated. [default: default]",
        ),
        click.option(
            "--gpu", "gpus", multiple=True, metavar="NAME",
            help="Target GPU; may be repeated. Overrides the spec's targets.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def read_selection(
    gpus: Sequence[str], specs: Sequence[str], source: str | None
) -> tuple[Spec, tuple[Target, ...]]:
    from ssd_aot.sources import require_source

    spec = load_spec([resolve_spec(name) for name in specs or ("default",)])
    if source is None:
        require_source(spec.source, spec.place("source"))
    else:
        require_source(source, "--source")
        spec = replace(spec, source=source)
    names = gpus or spec.targets
    if not names:
        raise UsageError("no target GPU", where="--gpu", found="none", wanted="a GPU name",
                         mend="pass --gpu NAME or give targets in the spec")  # fmt: skip
    for notice in spec.notices:
        click.echo(f"note: {notice}", err=True)
    return spec, tuple(dict.fromkeys(target(name) for name in names))


@main.command()
@selection
@click.option("--out", type=click.Path(path_type=Path), help="Bundle folder. [default: dist/NAME]")
@click.option("--jobs", type=click.IntRange(1), default=lambda: available_cores(),
              show_default="the cores here", help="Parallel compilations.")  # fmt: skip
@click.option("--keep-going", is_flag=True, help="Write an incomplete bundle, and exit 1.")
@click.option("--max-spill", "max_spill_bytes", type=click.IntRange(0), metavar="BYTES",
              help="Fail launches that spill more a thread.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def build(
    gpus: tuple[str, ...],
    specs: tuple[str, ...],
    source: str | None,
    out: Path | None,
    jobs: int,
    keep_going: bool,
    max_spill_bytes: int | None,
    as_json: bool,
) -> None:
    """Plan, compile and write a bundle; needs no GPU."""
    from ssd_aot.building import build as build_bundle
    from ssd_aot.progress import ProgressPrinter

    spec, targets = read_selection(gpus, specs, source)
    place = out or Path("dist") / "+".join(t.name for t in targets)
    report = build_bundle(
        spec, targets, place, jobs=jobs, keep_going=keep_going,
        max_spill_bytes=max_spill_bytes, on_progress=ProgressPrinter(),
    )  # fmt: skip
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


def available_cores() -> int:
    """The cores this process may use, which a container may hold below the machine's."""
    return len(os.sched_getaffinity(0))


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
