"""`ssd-aot plan`: what a build would make, and why."""

from __future__ import annotations

import json

import click

from ssd_aot.commands.selecting import read_selection, selection


@click.command()
@selection
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def plan(gpus: tuple[str, ...], specs: tuple[str, ...], source: str | None, as_json: bool) -> None:
    """Show what would be built and why; compiles nothing."""
    from ssd_aot.plan import make_plan

    spec, targets = read_selection(gpus, specs, source)
    made = make_plan(spec, targets)
    click.echo(json.dumps(made.to_json()) if as_json else made.render())
