"""`ssd-aot doctor`: what this host has and lacks, and the mend for each."""

from __future__ import annotations

import json
import sys

import click

from ssd_aot import terminal
from ssd_aot.doctor.diagnosis import PURPOSES, Purpose


@click.command()
@click.option("--for", "purposes", multiple=True, type=click.Choice(PURPOSES),
              help="Exit 3 where something for this is lacking; may be repeated.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def doctor(purposes: tuple[Purpose, ...], as_json: bool) -> None:
    """Show what this host has and lacks for building, for tuning and for serving.

    Exits 0 whatever it finds, unless --for says what the host is for.
    """
    from ssd_aot.doctor.examining import examine

    diagnosis = examine()
    if as_json:
        click.echo(json.dumps(diagnosis.to_json()))
    else:
        terminal.show(str(diagnosis))
    if any(diagnosis.lacks(purpose) for purpose in purposes):
        sys.exit(3)
