"""A bundle on a network file system, copied once a host and served from there.

Network file systems lose files under a reader: what was a folder a moment ago is a stale handle.
So a bundle that lies on one, or any where SSD_AOT_LOCAL is set, is read with patience, once, and
only what its manifest lists and vouches for. The copy goes by the bundle's digest: all processes of
a host share it, and it is never mistaken for another's.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ssd_aot.bundle.layout import CHECKSUM_FILE, MANIFEST_FILE, checksum_text
from ssd_aot.bundle.mounts import on_network
from ssd_aot.bundle.store import Bundle
from ssd_aot.bundle.writer import place_folder
from ssd_aot.errors import BundleError, HostError

LOCAL = "SSD_AOT_LOCAL"
"""The folder for copies; a network file system or not, what is loaded is copied there."""

_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""Between attempts to read: a server that fails over is back within seconds, or not at all."""
_PASSING = (errno.ESTALE, errno.EIO, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT)
_LOCK_WAIT_S = 300.0

Result = TypeVar("Result")


def open_patiently(path: str | os.PathLike[str]) -> Bundle:
    """`Bundle.open`, again where a network file system has lost its place."""
    return _patiently(lambda: Bundle.open(path))


def local_copy(bundle: Bundle) -> Bundle:
    """The bundle itself, or its copy on this host where it is wanted (see `LOCAL`).

    Raises BundleError for a bundle whose files are not those of its manifest, HostError for a
    folder for copies that belongs to somebody else or that others may write to.
    """
    named = os.environ.get(LOCAL, "")
    if not named and not on_network(bundle.path):
        return bundle
    folder = _folder_of(named)
    if not named and on_network(folder):
        if os.stat(bundle.path).st_dev != os.stat(folder.parent).st_dev:
            _warn(bundle, f"{folder} lies on one, too")
        return bundle
    try:
        _make(folder)
        return bundle if bundle.path.parent == folder else _shared(bundle, folder)
    except OSError as error:
        if named:
            raise _no_place(folder, error) from error
        _warn(bundle, error.strerror or str(error))
        return bundle


def _folder_of(named: str) -> Path:
    """Where copies lie: in the folder that is named, else in one of this user's own."""
    if named:
        return Path(os.path.realpath(named))
    return Path(os.path.realpath(tempfile.gettempdir())) / f"ssd-aot-{os.geteuid()}"


def _make(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    _refuse_strangers(folder)


def _refuse_strangers(folder: Path) -> None:
    """Raises HostError unless the folder is this user's or root's, and only theirs to write to."""
    found = os.lstat(folder)
    wrong = ""
    if not stat.S_ISDIR(found.st_mode):
        wrong = "no folder"
    elif found.st_uid not in (os.geteuid(), 0):
        wrong = f"owned by user {found.st_uid}"
    elif found.st_mode & stat.S_IWOTH:
        wrong = f"mode {stat.S_IMODE(found.st_mode):04o}, writable by everyone"
    if wrong:
        raise HostError(
            "whoever may write to this folder could change what is served",
            where=str(folder),
            found=wrong,
            wanted=f"a folder of user {os.geteuid()} or of root that others cannot write to",
            mend=f"set {LOCAL} to a folder of this user's own; one that is not there is made",
        )


def _shared(bundle: Bundle, folder: Path) -> Bundle:
    """The copy in the folder, made by whichever process comes first."""
    place = folder / bundle.digest
    present = _present(place, bundle.digest)
    if present is not None:
        return present
    # Imported here: every process that loads a bundle would take 10 ms for it.
    import filelock

    try:
        with filelock.FileLock(folder / f"{bundle.digest}.lock", timeout=_LOCK_WAIT_S, mode=0o600):
            return _present(place, bundle.digest) or _copied(bundle, place)
    except filelock.Timeout:
        # Whoever holds it is stuck in a read; a second copy takes the first one's place whole.
        return _copied(bundle, place)


def _present(place: Path, digest: str) -> Bundle | None:
    """The copy that is there, None for none and for one that lost files to a cleaner of temporary
    folders."""
    if not os.path.lexists(place):
        return None
    _refuse_strangers(place)
    try:
        found = Bundle.open(place)
    except BundleError:
        return None
    return found if found.digest == digest and not found.check_files() else None


def _copied(bundle: Bundle, place: Path) -> Bundle:
    listed = {path: sha256 for path, sha256, _ in bundle.manifest.files}
    listed[MANIFEST_FILE] = bundle.digest
    contents = {path: _read(bundle, path, sha256) for path, sha256 in sorted(listed.items())}
    contents[CHECKSUM_FILE] = checksum_text(bundle.digest).encode()
    try:
        place_folder(place, contents)
    except HostError as error:
        error.mend = f"free some space, or set {LOCAL} to a folder with enough"
        raise
    found = _present(place, bundle.digest)
    if found is None:
        raise BundleError(
            "the copy of a bundle on this host is not what was written",
            where=str(place),
            found="files that differ",
            wanted=f"a whole bundle with digest {bundle.digest}",
            mend=f"check the disk, or set {LOCAL} to a folder on another",
        )
    return found


def _read(bundle: Bundle, path: str, sha256: str) -> bytes:
    def read() -> bytes:
        data = bundle.read_listed(path)
        found = hashlib.sha256(data).hexdigest()
        if found != sha256:
            raise BundleError(
                "the bundle was changed or is not whole",
                where=str(bundle.path / path),
                found=f"{len(data)} bytes, sha256 {found}",
                wanted=f"sha256 {sha256}",
                mend="ship it again, and see `ssd-aot verify`",
            )
        return data

    try:
        return _patiently(read)
    except OSError as error:
        raise BundleError(
            "a file of the bundle cannot be read",
            where=str(bundle.path / path),
            found=error.strerror or str(error),
            wanted="a plain file that stays",
            mend="see what the network file system's server says, or ship the bundle in the image",
        ) from error


def _patiently(read: Callable[[], Result]) -> Result:
    for pause_s in _PAUSES_S:
        try:
            return read()
        except (OSError, BundleError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            if not isinstance(cause, OSError) or cause.errno not in _PASSING:
                raise
        time.sleep(pause_s)
    return read()


def _no_place(folder: Path, error: OSError) -> HostError:
    return HostError(
        "the bundle cannot be copied to this host",
        where=str(folder),
        found=error.strerror or str(error),
        wanted="a folder that this user may make and write to",
        mend=f"set {LOCAL} to another, or unset it",
    )


def _warn(bundle: Bundle, reason: str) -> None:
    warnings.warn(
        f"{bundle.path} lies on a network file system and is served from there, for want of a "
        f"place on this host ({reason}): set {LOCAL} to a folder",
        RuntimeWarning,
        stacklevel=4,
    )
