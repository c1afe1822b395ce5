"""`ssd-aot unpack`: an archive or an OCI image layout back to a bundle."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from ssd_aot.commands.selecting import WrittenPath


@click.command()
@click.argument("source", metavar="FILE")
@click.option("-o", "--out", type=WrittenPath(), metavar="DIR",
              help="The bundle's folder. [default: FILE without .tar]")  # fmt: skip
@click.option("--digest", metavar="SHA256", help="Take exactly this bundle or none.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def unpack(source: str, out: Path | None, digest: str | None, as_json: bool) -> None:
    """Write the bundle in an archive, in standard input (-), or in an OCI image layout's folder.

    All of it is checked first; the bundle appears whole or not at all.
    """
    from ssd_aot.archive.unpacking import unpack_bundle

    unpacked = unpack_bundle(source, None if out is None else str(out), sys.stdin.buffer, digest)
    click.echo(json.dumps(unpacked.to_json()) if as_json else str(unpacked))
