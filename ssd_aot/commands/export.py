"""`ssd-aot export`: a plain Triton cache folder, for images that carry no ssd_aot."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath

import click

from ssd_aot import terminal
from ssd_aot.commands.completing import bundles
from ssd_aot.commands.selecting import WrittenPath


@click.command()
@click.argument("bundle", shell_complete=bundles)
@click.option("--triton-cache", "out", required=True, type=WrittenPath(), metavar="DIR",
              help="The folder to write.")  # fmt: skip
@click.option("--at", "serves_at", metavar="PATH",
              help="Where the folder will lie in the image. [default: DIR]")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def export(bundle: str, out: Path, serves_at: str | None, as_json: bool) -> None:
    """Write an engine's kernels as a plain Triton cache folder for one final path."""
    from ssd_aot.bundle.store import Bundle
    from ssd_aot.exporting import export_triton_cache

    place = PurePosixPath(serves_at or out.absolute())
    made = export_triton_cache(Bundle.open(bundle), out, place)
    for name in made.left_out:
        terminal.note(
            f"note: {name} is not among them, Triton's key for it being the serving host's: "
            "that host needs a C compiler"
        )
    click.echo(json.dumps(made.to_json()) if as_json else str(made))
