"""Where things lie in a bundle, and which paths may hold one."""

from __future__ import annotations

import os
from pathlib import Path

from ssd_aot.errors import UsageError

MANIFEST_FILE = "manifest.json"
CHECKSUM_FILE = "manifest.json.sha256"
"""Lets a reader refuse a changed byte in the manifest itself; `sha256sum -c` reads it too."""


def checksum_text(digest: str) -> str:
    """The content of the checksum file for a manifest with that sha256."""
    return f"{digest}  {MANIFEST_FILE}\n"


def refuse_path(path: str) -> str:
    """What is wanted of a file's path inside a bundle where `path` is not that; empty if it is."""
    if path in (MANIFEST_FILE, CHECKSUM_FILE):
        return "a file beside the manifest and its checksum"
    plain = path and path.isprintable() and "\\" not in path and path.isascii()
    if not plain or any(part in ("", ".", "..") for part in path.split("/")):
        return "a relative path of plain names joined by /"
    return ""


def bundle_path(path: str | os.PathLike[str]) -> Path:
    """The absolute path, links resolved: a later change of the working folder or of a link such
    as `current` must not turn one bundle into another. Raises UsageError for an empty path."""
    spelled = os.fspath(path)
    if not spelled or "\0" in spelled:
        raise UsageError(
            "not a path", where="bundle", found=repr(spelled), wanted="the path of a folder"
        )
    return Path(os.path.realpath(spelled))


def is_bundle(folder: Path) -> bool:
    """Whether the folder holds a manifest of ours, be it whole or damaged. Other programs use the
    name `manifest.json` too; ours begins with its format."""
    try:
        with open(folder / MANIFEST_FILE, "rb") as file:
            return file.read(10) == b'{"format":'
    except OSError:
        return False
