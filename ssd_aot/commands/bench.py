"""`ssd-aot bench`: host and device time beside the engines that are installed."""

from __future__ import annotations

import json

import click

from ssd_aot.commands.completing import bundles


@click.command()
@click.argument("bundle", shell_complete=bundles)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def bench(bundle: str, as_json: bool) -> None:
    """Measure host and device time beside the engines installed here; needs the GPU."""
    from ssd_aot.bundle.store import Bundle
    from ssd_aot.measurement.benching import bench as measure

    measured = measure(Bundle.open(bundle))
    click.echo(json.dumps(measured.to_json()) if as_json else str(measured))
