"""The file system that a path lies on, by the kernel's own list of mounts."""

from __future__ import annotations

import os
import re
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")

NETWORK = (
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "gpfs", "lustre", "nfs",
    "nfs4", "ocfs2", "orangefs", "pvfs2", "smb3", "smbfs", "wekafs",
)  # fmt: skip
_LOCAL_FUSE = ("fuseblk", "fuse.fuse-overlayfs", "fuse.lxcfs")
"""FUSE serves networks for the most part: s3fs, gcsfuse, sshfs, juicefs. These it does not."""


def file_system_type(path: str | os.PathLike[str]) -> str:
    """`ext4`, `nfs4`, `fuse.gcsfuse`; empty where the kernel does not say."""
    place = Path(os.path.realpath(path))
    try:
        lines = MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return ""
    longest, found = -1, ""
    for line in lines:
        # proc(5): ID parent major:minor root MOUNT POINT options fields… - TYPE source options
        before, _, after = line.partition(" - ")
        fields = before.split()
        if len(fields) < 6 or not after:
            continue
        point = Path(_unescaped(fields[4]))
        # A later mount on the same point hides the earlier one.
        if place.is_relative_to(point) and len(point.parts) >= longest:
            longest, found = len(point.parts), after.split()[0]
    return found


def on_network(path: str | os.PathLike[str]) -> bool:
    """Whether another machine serves the path, so that it can be lost under a reader."""
    found = file_system_type(path)
    return found in NETWORK or (found.startswith("fuse") and found not in _LOCAL_FUSE)


def _unescaped(name: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), name)
