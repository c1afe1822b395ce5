"""From an archive or an OCI image layout to a bundle, which appears whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ssd_aot.archive.layout_reading import image_bundle, is_layout
from ssd_aot.archive.packing import SUFFIX
from ssd_aot.archive.reading import Contents, read_bundle
from ssd_aot.bundle.pin import pinned_digest
from ssd_aot.bundle.writer import BundleWriter
from ssd_aot.errors import BundleError, UsageError

STDIN = "-"


@dataclass(frozen=True)
class Unpacked:
    """The bundle that was put in place: its path, digest, and how much it holds."""

    bundle: str
    digest: str
    files: int
    size_bytes: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        head = f"{self.bundle}: {self.files} files, {self.size_bytes} bytes"
        return f"{head}\ndigest {self.digest}"


def unpack_bundle(
    source: str, out: str | None, stdin: BinaryIO, digest: str | None = None
) -> Unpacked:
    """Write the bundle in `source` to the folder `out`, with the bundle's own modes and times.

    `source` is an archive, `-` for one in `stdin`, or the folder of an OCI image layout. `out` may
    be left out for an archive `NAME.tar`: the bundle is then `NAME` beside it. A bundle in that
    place is replaced. `digest` pins the bundle, and so does the environment (`bundle.pin`).

    Raises BundleError for anything but a whole bundle as it was packed, MismatchError for another
    than the pinned one, UsageError for a place that holds anything but a bundle, HostError where it
    cannot be written. Nothing is written before all of the bundle was read and checked.
    """
    pinned = pinned_digest(digest, "--digest")
    place = _destination(source, out)
    writer = BundleWriter(place)
    contents = _contents(source, stdin, pinned)
    for path, data in contents.files.items():
        writer.add_file(path, data)
    writer.commit(contents.manifest)
    size = sum(size for _, _, size in contents.manifest.files)
    return Unpacked(place, contents.digest, len(contents.files), size)


def _destination(source: str, out: str | None) -> str:
    if out is not None:
        return out
    named = source.removesuffix(SUFFIX)
    if named != source and not is_layout(source):
        return named
    raise UsageError(
        "no folder to write to",
        where="--out",
        found=f"none, and {source!r} does not name one",
        wanted=f"a folder, or an archive whose name ends in {SUFFIX}",
        mend="give --out DIR",
    )


def _contents(source: str, stdin: BinaryIO, pinned: str | None) -> Contents:
    if source == STDIN:
        return read_bundle(stdin.read, "standard input", pinned=pinned)
    if is_layout(source):
        return image_bundle(Path(source), pinned)
    with _opened(source) as file:
        return read_bundle(file.read, source, pinned=pinned)


@contextmanager
def _opened(source: str) -> Iterator[BinaryIO]:
    try:
        if os.path.isdir(source):
            raise BundleError(
                "a folder that is no OCI image layout",
                where=source,
                found="no file oci-layout in it",
                wanted="an archive, or a layout as `ssd-aot pack --oci` or skopeo writes one",
                mend="name the archive itself; a bundle's folder needs no unpacking",
            )
        with open(source, "rb") as file:
            yield file
    except OSError as error:
        raise BundleError(
            "the archive cannot be read",
            where=source,
            found=error.strerror or str(error),
            wanted="a file that `ssd-aot pack` wrote",
        ) from error
