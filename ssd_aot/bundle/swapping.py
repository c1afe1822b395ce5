"""Putting a finished folder in its final place in one step, whatever was there before."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import stat
import tempfile
import warnings
from pathlib import Path

# linux/fcntl.h and linux/fs.h
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2

# The kernel or the file system does not know the exchange (overlayfs and NFS among them).
_NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EXDEV)


def put_in_place(new: Path, final: Path) -> None:
    """Rename `new` to `final`, which is on the same file system; a folder there is removed.

    Where the system can exchange two names, a reader finds the old folder or the new one at every
    moment; elsewhere there is a moment with neither, and never one with half. Raises OSError.
    """
    if not os.path.lexists(final):
        os.rename(new, final)
        old = None
    elif exchange(new, final):
        old = new
    else:
        old = Path(tempfile.mkdtemp(prefix=f".{final.name}.", suffix=".old", dir=final.parent))
        os.rename(final, old)
        try:
            os.rename(new, final)
        except BaseException:
            os.rename(old, final)
            raise
    sync_folder(final.parent)
    if old is not None:
        _remove(old)


def exchange(one: Path, other: Path) -> bool:
    """Swap two names at once; False where the system cannot. Raises OSError for other failures."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    names = os.fsencode(one), os.fsencode(other)
    if rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(other))


def sync_folder(folder: Path) -> None:
    """Make the folder's entries last through a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(old: Path) -> None:
    # A bundle that was made read-only has folders whose entries cannot be removed.
    for place, _, _ in os.walk(old):
        if not os.access(place, os.W_OK):
            os.chmod(place, stat.S_IRWXU)
    try:
        shutil.rmtree(old)
    except OSError as error:
        # The new bundle is in place; what is left over is no reason to call it failed.
        warnings.warn(f"the old bundle could not be removed from {old}: {error}", stacklevel=2)
