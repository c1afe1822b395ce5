"""The temporary files of a call on a node, which go even when its worker is killed: with the next
call there."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock

_PREFIX = "ssd-aot-call-"


@contextmanager
def own_scratch() -> Iterator[Path]:
    """This process keeps its temporary files in a folder of its own until the end of the block;
    folders whose processes have ended are removed first."""
    before = tempfile.tempdir
    place = Path(tempfile.gettempdir())
    _sweep(place)
    folder = place / f"{_PREFIX}{uuid.uuid4().hex}"
    with _lock(folder):
        try:
            folder.mkdir(mode=0o700)
            tempfile.tempdir = str(folder)
            yield folder
        finally:
            tempfile.tempdir = before
            _remove(folder)


def _sweep(place: Path) -> None:
    for path in place.glob(f"{_PREFIX}*.lock"):
        folder = path.with_suffix("")
        lock = _lock(folder)
        try:
            lock.acquire(timeout=0)
        except (filelock.Timeout, OSError):
            # Its process lives, or is another user's.
            continue
        _remove(folder)
        lock.release()


def _lock(folder: Path) -> filelock.BaseFileLock:
    return filelock.FileLock(folder.with_suffix(".lock"))


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.with_suffix(".lock").unlink(missing_ok=True)
