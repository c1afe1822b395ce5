"""The supported releases of Triton beside the installed one, for tests of their keys.

`python tests/triton_releases.py` puts each in `.triton/VERSION`, whole, without what it requires.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

RELEASES = ("3.6.0", "3.7.1", "3.8.0", "3.9.0")
PLACE = Path(__file__).parent.parent / ".triton"


def release_folder(version: str) -> Path | None:
    """What has to come first in Python's path for that release; None for the installed one."""
    return None if version == importlib.metadata.version("triton") else PLACE / version


def fetch(version: str) -> bool:
    """Download a release, unless it is here; whether it is here then."""
    place = release_folder(version)
    if place is None or place.exists():
        return True
    partial = place.with_name(f"{version}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    command = ["install", "--quiet", "--no-deps", "--no-compile", "--only-binary", ":all:"]
    ended = subprocess.run(
        [sys.executable, "-m", "pip", *command, "--target", partial, f"triton=={version}"],
        check=False,
    )
    if ended.returncode == 0:
        partial.rename(place)
    return ended.returncode == 0


if __name__ == "__main__":
    missing = [version for version in RELEASES if not fetch(version)]
    if missing:
        sys.exit(f"not to be had here: triton {', '.join(missing)}; its tests will be skipped")
