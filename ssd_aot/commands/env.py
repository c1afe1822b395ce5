"""`ssd-aot env`: the lines of a Dockerfile that put a bundle in service."""

from __future__ import annotations

import click

from ssd_aot.commands.completing import bundles


@click.command()
@click.argument("bundle", shell_complete=bundles)
@click.option("--at", metavar="PATH", help="Where the bundle lies in the image. [default: BUNDLE]")
def env(bundle: str, at: str | None) -> None:
    """Print the lines of a Dockerfile with which an engine finds the bundle."""
    from ssd_aot.bundle.store import Bundle
    from ssd_aot.service_environment import service_lines

    opened = Bundle.open(bundle)
    click.echo("\n".join(service_lines(opened, at or str(opened.path))))
