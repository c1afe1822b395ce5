"""What is in service in this process, what was asked of it, and what it could not answer."""

from __future__ import annotations

import sys
from typing import Any

from ssd_aot.runtime.triton_service import SERVICE


def status() -> dict[str, Any]:
    """`bundles` with path, digest and source; `hits` and `misses` of Triton's look-ups by file
    name since load; `strict`; and `changed`, what changed under them, one sentence each."""
    found = SERVICE.status()
    if SERVICE.served:
        found["changed"] += _settings_changed()
    return found


def _settings_changed() -> list[str]:
    """What another part of the program set in Triton since `load` did."""
    knobs = sys.modules["triton.knobs"]
    manager = sys.modules["ssd_aot.runtime.triton_cache"].BundleCacheManager
    changed = []
    if knobs.cache.manager_class is not manager:
        changed.append(f"Triton's cache manager is now {knobs.cache.manager_class}: nothing of the "
                       "bundle is found")  # fmt: skip
    if not knobs.autotuning.cache:
        changed.append("autotuners made since read no results: TRITON_CACHE_AUTOTUNING is off")
    return changed
