"""`ssd-aot pack`: a bundle as one file, or as an OCI image."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from ssd_aot.commands.completing import bundles
from ssd_aot.commands.selecting import WrittenPath
from ssd_aot.errors import UsageError


@click.command()
@click.argument("bundle", shell_complete=bundles)
@click.option("-o", "--out", type=WrittenPath(), metavar="FILE",
              help="The archive, - for standard output. [default: BUNDLE.tar]")  # fmt: skip
@click.option("--oci", type=WrittenPath(), metavar="DIR",
              help="Write an OCI image layout to this folder instead.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def pack(bundle: str, out: Path | None, oci: Path | None, as_json: bool) -> None:
    """Verify a bundle and write it as one file, or as an OCI image that registries take.

    The same bundle gives the same bytes on every machine.
    """
    from ssd_aot.archive.image import PackedImage, pack_image
    from ssd_aot.archive.packing import STDOUT, Packed, pack_archive
    from ssd_aot.progress import ProgressPrinter

    if oci is not None and out is not None:
        raise UsageError("--out and --oci both say where to write", where="--oci", found=str(oci),
                         wanted="one of them", mend="pack twice to have both")  # fmt: skip
    to_stdout = out == Path(STDOUT)
    if to_stdout and as_json:
        raise UsageError("the archive and the JSON document would both be standard output",
                         where="--out", found=STDOUT, mend="give --out FILE")  # fmt: skip
    if oci is not None:
        packed: PackedImage | Packed = pack_image(bundle, str(oci), ProgressPrinter())
    else:
        place = None if out is None else str(out)
        packed = pack_archive(bundle, place, sys.stdout.buffer, ProgressPrinter())
    click.echo(json.dumps(packed.to_json()) if as_json else str(packed), err=to_stdout)
