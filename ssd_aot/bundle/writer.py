"""Writing a bundle: beside its final place, then into it, so that no reader sees half of one."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from ssd_aot.bundle.layout import (
    CHECKSUM_FILE,
    MANIFEST_FILE,
    bundle_path,
    checksum_text,
    is_bundle,
    refuse_path,
)
from ssd_aot.bundle.manifest import Manifest, object_path
from ssd_aot.bundle.swapping import put_in_place, sync_folder
from ssd_aot.errors import BundleError, HostError, UsageError

FILE_MODE = 0o644
FOLDER_MODE = 0o755
EARLIEST_TIME = 315_532_800
"""1980-01-01, the earliest time that a zip archive can hold, in seconds since 1970."""

# A limit on the size of files (EFBIG) stops a build just as a full disk does.
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_destination(path: str | os.PathLike[str]) -> Path:
    """The absolute path to write to. Raises UsageError for an empty path and for anything that is
    there and neither a bundle nor an empty folder: a build must not cost anybody their files."""
    folder = bundle_path(path)
    if os.path.lexists(folder) and not is_bundle(folder):
        empty = folder.is_dir() and not any(folder.iterdir())
        if not empty:
            raise UsageError(
                "the output exists and is not a bundle, so it is not replaced",
                where=str(folder),
                found="a folder without a bundle's manifest" if folder.is_dir() else "a file",
                wanted="a bundle, an empty folder, or nothing",
                mend="give another --out, or move it away",
            )
    return folder


def digest_there(folder: Path) -> str:
    """The digest of the bundle that is there, as its checksum file says; nothing where none is."""
    try:
        return (folder / CHECKSUM_FILE).read_text(encoding="ascii").partition(" ")[0].strip()
    except (OSError, UnicodeDecodeError):
        return ""


class BundleWriter:
    """Collects a bundle's files and writes them all at once; until then nothing is on the disk."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = check_destination(path)
        self._contents: dict[str, bytes] = {}

    def add_object(self, data: bytes) -> str:
        """Add a code object, once however often it is added; returns its path in the bundle."""
        path = object_path(hashlib.sha256(data).hexdigest())
        self._contents[path] = data
        return path

    def add_file(self, path: str, data: bytes) -> None:
        """Add another file. Raises BundleError for a path that no bundle holds."""
        wanted = refuse_path(path)
        if wanted:
            raise BundleError("a path that no bundle holds", found=repr(path), wanted=wanted)
        self._contents[path] = data

    @property
    def files(self) -> tuple[tuple[str, str, int], ...]:
        """What the manifest's `files` must hold: (path, sha256, size in bytes), by path."""
        return tuple(
            (path, hashlib.sha256(data).hexdigest(), len(data))
            for path, data in sorted(self._contents.items())
        )

    def commit(self, manifest: Manifest) -> str:
        """Write the bundle and put it in place; returns its digest.

        Raises BundleError when the manifest lists other files than were added, HostError when the
        disk is full or cannot be written: what was in place before is then still there, whole.
        """
        self._check_listed(manifest)
        text = manifest.to_json_text().encode()
        digest = hashlib.sha256(text).hexdigest()
        contents = {
            **self._contents,
            MANIFEST_FILE: text,
            CHECKSUM_FILE: checksum_text(digest).encode(),
        }
        place_folder(check_destination(self.path), contents)
        return digest

    def _check_listed(self, manifest: Manifest) -> None:
        added, listed = set(self.files), set(manifest.files)
        if added != listed:
            raise BundleError(
                "the manifest does not list the files that were added",
                where=str(self.path),
                found=f"added but not listed: {_paths(added - listed)}",
                wanted=f"listed but not added: {_paths(listed - added)}",
            )


def place_folder(final: Path, contents: Mapping[str, bytes]) -> None:
    """Write the folder `final` of these files, by their paths in it, in the place of what is there.

    Raises HostError when the disk is full or cannot be written: nothing has changed then.
    """
    time = _file_time()
    with disk_errors(final, sum(map(len, contents.values()))):
        final.parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.mkdtemp(prefix=f".{final.name}.", suffix=".new", dir=final.parent)
        try:
            _write_tree(Path(folder), contents, time)
            put_in_place(Path(folder), final)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _paths(files: set[tuple[str, str, int]]) -> str:
    return ", ".join(sorted(path for path, _, _ in files)) or "none"


def _file_time() -> int:
    """Every file's time in seconds since 1970, by https://reproducible-builds.org's variable."""
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not given:
        return EARLIEST_TIME
    if not given.isdecimal():
        raise UsageError(
            "not a time",
            where="SOURCE_DATE_EPOCH",
            found=repr(given),
            wanted="seconds since 1970",
            mend="unset it or set it to a whole number",
        )
    return int(given)


def _write_tree(folder: Path, contents: Mapping[str, bytes], time: int) -> None:
    for path, data in sorted(contents.items()):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        _write_file(folder / path, data, time)
    # Deepest first: writing into a folder changes its time.
    for place, _, _ in os.walk(folder, topdown=False):
        os.chmod(place, FOLDER_MODE)
        os.utime(place, (time, time))
        sync_folder(Path(place))


def _write_file(path: Path, data: bytes, time: int) -> None:
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        # Not through the mode given to open: the umask would enter.
        os.fchmod(file.fileno(), FILE_MODE)
        os.utime(file.fileno(), (time, time))
        os.fsync(file.fileno())


@contextmanager
def disk_errors(final: Path, needed_bytes: int) -> Iterator[None]:
    """A failed write of `final` as the HostError of a full disk or a missing permission."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise HostError(
                "the bundle cannot be written",
                where=str(error.filename or final),
                found=error.strerror or str(error),
                wanted="a place that this user may write to",
                mend="give another --out, or change the folder's permissions",
            ) from error
        raise HostError(
            "no space is left for the bundle",
            where=str(final.parent),
            found=f"{error.strerror}, {shutil.disk_usage(final.parent).free} bytes free",
            wanted=f"{needed_bytes} bytes",
            mend="free some space or give another --out, then run this again",
        ) from error
