"""What is in service in this process, what was asked of it, and what it could not answer."""

from __future__ import annotations

from typing import Any

from ssd_aot.runtime.triton_service import SERVICE


def status() -> dict[str, Any]:
    """`bundles` with path, digest and source; `hits` and `misses` of Triton's look-ups by file
    name since load; `strict`; and `changed`, what changed under them, one sentence each."""
    return SERVICE.status()
