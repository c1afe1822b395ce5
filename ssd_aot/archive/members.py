"""What the tar stream of a bundle consists of: every byte of it follows from the manifest.

The manifest comes first and its checksum second, then the files that it lists, by path, each folder
before what it holds. Modes, owners and times are fixed, and nothing is compressed: compressors give
other bytes from release to release. So one bundle has one archive, and a reader need not trust a
header: it computes each from the manifest and compares.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from ssd_aot.bundle.layout import CHECKSUM_FILE, MANIFEST_FILE, checksum_text
from ssd_aot.bundle.manifest import Manifest
from ssd_aot.bundle.writer import EARLIEST_TIME, FILE_MODE, FOLDER_MODE
from ssd_aot.errors import BundleError

BLOCK = tarfile.BLOCKSIZE
SIZE_FIELD = slice(124, 136)
"""Where a header has the size, octal digits and a NUL (POSIX.1-1988, ustar)."""
END = bytes(2 * BLOCK)

MAX_FILES = 65_536
MAX_BYTES = 1 << 30
"""Of all files together, some 400 times what the default spec needs: reading takes that memory."""
MAX_MANIFEST_BYTES = 64 << 20
MAX_PATH = 1023
MAX_NAME = 255
"""Bytes of a path, and of one name in it: what file systems take wherever a bundle is put."""

SMALLER = "build fewer models or targets into one bundle"


@dataclass(frozen=True)
class Member:
    """A file of the stream, or a folder, which has no size."""

    path: str
    size_bytes: int | None

    @property
    def header(self) -> bytes:
        """One block, and an extended header before it where the path is too long for one."""
        info = tarfile.TarInfo(self.path)
        info.size = self.size_bytes or 0
        info.mtime = EARLIEST_TIME
        info.mode = FOLDER_MODE if self.size_bytes is None else FILE_MODE
        info.type = tarfile.DIRTYPE if self.size_bytes is None else tarfile.REGTYPE
        try:
            return info.tobuf(tarfile.USTAR_FORMAT, "ascii", "strict")
        except ValueError:
            return info.tobuf(tarfile.PAX_FORMAT, "ascii", "strict")

    @property
    def padding(self) -> bytes:
        """What fills the file's last block."""
        return bytes(-(self.size_bytes or 0) % BLOCK)

    def __str__(self) -> str:
        if self.size_bytes is None:
            return f"the folder {self.path}"
        return f"the file {self.path} of {self.size_bytes} bytes"


def folders_above(path: str) -> Iterator[str]:
    """The folders that a relative path lies in, outermost first."""
    yield from (parent.as_posix() for parent in reversed(PurePosixPath(path).parents[:-1]))


def manifest_member(size_bytes: int, prefix: str) -> Member:
    return Member(f"{prefix}{MANIFEST_FILE}", size_bytes)


def leading(prefix: str) -> tuple[Member, ...]:
    """What comes before the manifest: the folders that the whole bundle lies in, if any.

    `prefix` is empty, or their path with a slash behind it.
    """
    return tuple(Member(folder, None) for folder in folders_above(f"{prefix}{MANIFEST_FILE}"))


def following(manifest: Manifest, prefix: str) -> Iterator[tuple[Member, str]]:
    """What comes after the manifest, each member with the file's path in the bundle; a folder has
    none, and of `Manifest.files` only the checksum is not one."""
    yield Member(f"{prefix}{CHECKSUM_FILE}", len(checksum_text(manifest.digest))), CHECKSUM_FILE
    folders: set[str] = set()
    for path, _, size in sorted(manifest.files):
        for folder in folders_above(path):
            if folder not in folders:
                folders.add(folder)
                yield Member(f"{prefix}{folder}", None), ""
        yield Member(f"{prefix}{path}", size), path


def total_bytes(manifest: Manifest) -> int:
    """The size of the bundle's files together, the manifest and its checksum among them."""
    own = len(manifest.to_json_text()) + len(checksum_text(manifest.digest))
    return own + sum(size for _, _, size in manifest.files)


def check_limits(manifest: Manifest) -> None:
    """Raises BundleError where the files that a manifest lists cannot lie in one folder anywhere:
    too many, too large, too long, or two that differ in upper and lower case alone."""
    for found, most, what in (
        (len(manifest.to_json_text()), MAX_MANIFEST_BYTES, "bytes of manifest"),
        (len(manifest.files), MAX_FILES, "files"),
        (total_bytes(manifest), MAX_BYTES, "bytes in all"),
    ):
        if found > most:
            raise BundleError(
                "a bundle too large for an archive",
                where=MANIFEST_FILE,
                found=f"{found} {what}",
                wanted=f"at most {most}",
                mend=SMALLER,
            )
    seen = {name.casefold(): name for name in (MANIFEST_FILE, CHECKSUM_FILE)}
    files = {path for path, _, _ in manifest.files}
    for path in sorted(files):
        _check_length(path)
        above = list(folders_above(path))
        for name in (*above, path):
            if seen.setdefault(name.casefold(), name) != name:
                raise _clash(name, f"{seen[name.casefold()]}, which is the same to some systems")
        for folder in above:
            if folder in files or folder in (MANIFEST_FILE, CHECKSUM_FILE):
                raise _clash(path, f"{folder}, a file and a folder")


def _check_length(path: str) -> None:
    longest = max(map(len, path.split("/")))
    if len(path) > MAX_PATH or longest > MAX_NAME:
        raise BundleError(
            "a path too long for an archive",
            where=MANIFEST_FILE,
            found=f"{len(path)} bytes, its longest name {longest}: {path[:60]}…",
            wanted=f"at most {MAX_PATH} bytes, and {MAX_NAME} a name",
            mend="give the file a shorter name",
        )


def _clash(path: str, other: str) -> BundleError:
    return BundleError(
        "two files of the manifest are in each other's place",
        where=MANIFEST_FILE,
        found=f"{path} and {other}",
        wanted="names that differ on every file system",
        mend="name them apart",
    )
