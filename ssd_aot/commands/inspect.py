"""`ssd-aot inspect`: what is inside a bundle."""

from __future__ import annotations

import json

import click

from ssd_aot.commands.completing import bundles


@click.command()
@click.argument("bundle", shell_complete=bundles)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def inspect(bundle: str, as_json: bool) -> None:
    """Show what is inside a bundle."""
    from ssd_aot.bundle.store import Bundle
    from ssd_aot.verification.inspecting import describe, render

    opened = Bundle.open(bundle)
    click.echo(json.dumps(describe(opened)) if as_json else render(opened))
