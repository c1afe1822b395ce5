"""Failed writes, told as what the host lacks."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from ssd_aot.errors import HostError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""No space, no quota, or a file-size limit of the process."""


def write_error(error: OSError, place: Path, needed_bytes: int) -> HostError:
    """A failed write as the error of a host that lacks room, or permission."""
    if error.errno not in NO_ROOM:
        return HostError(
            "the build cannot write here",
            where=str(place),
            found=error.strerror or str(error),
            mend="choose another folder with --out, or make this one writable",
        )
    try:
        free = f"{shutil.disk_usage(place).free} bytes free on the file system"
    except OSError:
        free = "unknown room"
    return HostError(
        "no room left for the build",
        where=str(place),
        found=f"{error.strerror} ({free})",
        wanted=f"{needed_bytes} bytes for the next file" if needed_bytes else "",
        mend="free space or raise the quota and run again: what is compiled is kept",
    )
