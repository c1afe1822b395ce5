"""`ssd-aot plan`: what a build would make, and why."""

from __future__ import annotations

import json
import sys

import click

from ssd_aot.commands.selecting import read_selection, selection


@click.command()
@selection
@click.option(
    "--fuzz",
    "batches",
    type=click.IntRange(min=1),
    metavar="N",
    help="Draw N random serving batches and look up every launch in the plan.",
)
@click.option("--seed", type=int, default=0, show_default=True,
              help="Which random batches --fuzz draws.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def plan(
    gpus: tuple[str, ...],
    specs: tuple[str, ...],
    source: str | None,
    batches: int | None,
    seed: int,
    as_json: bool,
) -> None:
    """Show what would be built and why; compiles nothing."""
    from ssd_aot.fuzzing.checking import Fuzzing, fuzz_plan
    from ssd_aot.plan import make_plan

    spec, targets = read_selection(gpus, specs, source)
    made = make_plan(spec, targets)
    found = fuzz_plan(spec, targets, made, Fuzzing(batches, seed)) if batches else None
    if as_json:
        fuzz = {"fuzz": found.to_json()} if found else {}
        click.echo(json.dumps({**made.to_json(), **fuzz}))
    else:
        click.echo(made.render())
        for finding in found.findings() if found else ():
            click.echo("\n".join(finding.lines()))
    if found and found.missing:
        sys.exit(1)
