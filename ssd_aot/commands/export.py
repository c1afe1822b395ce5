"""`ssd-aot export`: a plain Triton cache folder, for images that carry no ssd_aot."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import click

from ssd_aot.commands.selecting import WrittenPath


@click.command()
@click.argument("bundle")
@click.option("--triton-cache", "out", required=True, type=WrittenPath(), metavar="DIR",
              help="The folder to write.")  # fmt: skip
@click.option("--at", "serves_at", metavar="PATH",
              help="Where the folder will lie in the image. [default: DIR]")  # fmt: skip
def export(bundle: str, out: Path, serves_at: str | None) -> None:
    """Write an engine's kernels as a plain Triton cache folder for one final path."""
    from ssd_aot.bundle.store import Bundle
    from ssd_aot.exporting import export_triton_cache

    place = PurePosixPath(serves_at or out.absolute())
    made = export_triton_cache(Bundle.open(bundle), out, place)
    for name in made.left_out:
        click.echo(
            f"note: {name} is not among them, Triton's key for it being the serving host's: "
            "that host needs a C compiler",
            err=True,
        )
    click.echo(str(made))
