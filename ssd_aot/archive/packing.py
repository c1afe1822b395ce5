"""A bundle as one file: a tar archive whose bytes follow from the bundle's digest alone."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ssd_aot.archive.members import (
    END,
    SIZE_FIELD,
    check_limits,
    following,
    leading,
    manifest_member,
)
from ssd_aot.bundle.layout import CHECKSUM_FILE, checksum_text
from ssd_aot.bundle.store import Bundle
from ssd_aot.bundle.writer import FILE_MODE, disk_errors
from ssd_aot.errors import BundleError, HostError, UsageError
from ssd_aot.progress import Progress
from ssd_aot.verification.verifying import verify

STDOUT = "-"
SUFFIX = ".tar"


@dataclass(frozen=True)
class Packed:
    """What was written: the archive's path, size and sha256, and the digest of the bundle in it."""

    archive: str
    size_bytes: int
    sha256: str
    digest: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        head = f"{self.archive}: {self.size_bytes} bytes"
        return f"{head}\nsha256 {self.sha256}\ndigest {self.digest}"


OnProgress = Callable[[Progress], None]


def pack_archive(
    path: str | os.PathLike[str],
    out: str | None,
    stdout: BinaryIO,
    on_progress: OnProgress | None = None,
) -> Packed:
    """Write the bundle at `path` as one archive to `out`: a file, `-` for `stdout`, or None for a
    file beside the bundle, of its name. The bundle is verified before anything is written.

    Raises BundleError for a bundle that does not verify, UsageError for an `out` that is there and
    no archive of a bundle, HostError where it cannot be written.
    """
    bundle = verified(path)
    if out == STDOUT:
        return _to_stream(bundle, stdout, on_progress)
    return _to_file(bundle, archive_path(path, out, bundle), on_progress)


def verified(path: str | os.PathLike[str]) -> Bundle:
    """The bundle at `path`, whole, untouched, complete and no larger than an archive may be.
    Raises BundleError."""
    bundle = Bundle.open(path)
    failures = verify(bundle).failures
    if failures:
        first = failures[0]
        raise BundleError(
            f"the bundle does not verify ({len(failures)} findings), so it is not packed",
            where=str(path),
            found=": ".join(part for part in (first.check, first.what, first.found) if part),
            wanted=first.wanted or "a bundle that verifies",
            mend=first.mend or "see `ssd-aot verify`",
        )
    check_limits(bundle.manifest)
    return bundle


def stream(
    bundle: Bundle, prefix: str = "", on_progress: OnProgress | None = None
) -> Iterator[bytes]:
    """The bytes of the archive, its paths below `prefix`; progress counts the listed files. Raises
    BundleError when a file changes while it is read."""
    began, done = time.monotonic(), 0
    for folder in leading(prefix):
        yield folder.header
    text = bundle.manifest.to_json_text().encode()
    member = manifest_member(len(text), prefix)
    yield from (member.header, text, member.padding)
    digests = {path: digest for path, digest, _ in bundle.manifest.files}
    for member, path in following(bundle.manifest, prefix):
        yield member.header
        if path == CHECKSUM_FILE:
            yield checksum_text(bundle.digest).encode()
        elif path:
            yield _content(bundle, path, digests[path])
            done += 1
            if on_progress is not None:
                elapsed = time.monotonic() - began
                left = elapsed / done * (len(digests) - done)
                on_progress(Progress(done, len(digests), 0, elapsed, left, "packed", path))
        yield member.padding
    yield END


def _content(bundle: Bundle, path: str, digest: str) -> bytes:
    try:
        data = (bundle.path / path).read_bytes()
        found = hashlib.sha256(data).hexdigest()
    except OSError as error:
        found = error.strerror or str(error)
    if found != digest:
        raise BundleError(
            "a file of the bundle changed while it was packed",
            where=str(bundle.path / path),
            found=found,
            wanted=f"sha256 {digest}",
            mend="pack it again when nothing writes there",
        )
    return data


def archive_path(path: str | os.PathLike[str], out: str | None, bundle: Bundle) -> Path:
    """The file to write. Raises UsageError for a place in the bundle itself, and for one that holds
    anything but an archive of a bundle: packing must not cost anybody their files."""
    # Links in the bundle's own name are kept: what is packed as `current` is found as `current`.
    place = Path(os.path.abspath(out if out is not None else f"{os.path.abspath(path)}{SUFFIX}"))
    if bundle.path in (place, *Path(os.path.realpath(place)).parents):
        raise UsageError(
            "the archive would lie in the bundle",
            where=str(place),
            wanted="a place outside: a bundle holds only what its manifest lists",
            mend="give another --out",
        )
    if os.path.lexists(place) and not is_archive(place):
        raise UsageError(
            "the output exists and is no archive of a bundle, so it is not replaced",
            where=str(place),
            found="a folder" if place.is_dir() else "another file",
            wanted="an archive of a bundle, an empty file, or nothing",
            mend="give another --out, or move it away",
        )
    return place


def is_archive(place: Path) -> bool:
    """Whether a plain file begins as archives of bundles do, or is empty."""
    try:
        if not stat.S_ISREG(place.stat().st_mode):
            return False
        with open(place, "rb") as file:
            # Names, modes and owners of the manifest's header, up to its size.
            start = manifest_member(0, "").header[: SIZE_FIELD.start]
            return file.read(len(start)) in (b"", start)
    except OSError:
        return False


def _to_file(bundle: Bundle, place: Path, on_progress: OnProgress | None) -> Packed:
    # A link is written through, as redirection does.
    final = Path(os.path.realpath(place))
    with disk_errors(final, sum(size for _, _, size in bundle.manifest.files)):
        final.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{final.name}.", suffix=".new", dir=final.parent)
        try:
            with open(handle, "wb") as file:
                packed = _write(bundle, file.write, str(place), on_progress)
                file.flush()
                os.fchmod(file.fileno(), FILE_MODE)
                os.fsync(file.fileno())
            os.replace(name, final)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise
    return packed


def _to_stream(bundle: Bundle, stdout: BinaryIO, on_progress: OnProgress | None) -> Packed:
    try:
        packed = _write(bundle, stdout.write, STDOUT, on_progress)
        stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise HostError(
            "the archive cannot be written", where="stdout", found=error.strerror or str(error)
        ) from error
    return packed


def _write(
    bundle: Bundle, write: Callable[[bytes], object], name: str, on_progress: OnProgress | None
) -> Packed:
    written, digest = 0, hashlib.sha256()
    for piece in stream(bundle, on_progress=on_progress):
        write(piece)
        digest.update(piece)
        written += len(piece)
    return Packed(name, written, digest.hexdigest(), bundle.digest)
