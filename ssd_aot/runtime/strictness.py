"""Strict mode: a gap ends the program where it is found, at load wherever it can be known then.

A rank that compiles keeps the others waiting in a collective until they give up. What a bundle
lacks is therefore told from its manifest alone, by each rank for itself and in the same words.
"""

from __future__ import annotations

import os

from ssd_aot.bundle.needs import unmet
from ssd_aot.bundle.store import Bundle
from ssd_aot.errors import BundleError, listed
from ssd_aot.runtime.selection import EVERYTHING, Selection

STRICT = "SSD_AOT_STRICT"


def strict_by_environment() -> bool:
    return os.environ.get(STRICT, "") not in ("", "0")


def refuse_gaps(bundle: Bundle, selection: Selection = EVERYTHING) -> None:
    """Raises BundleError where the bundle lacks what its build planned for the signatures selected;
    the message names no path, so that all ranks have the same."""
    gaps = list(unmet(bundle.manifest, selection.names))
    if not gaps:
        return
    raise BundleError(
        "the bundle lacks what its signatures need, and strict mode wants all of it",
        where=f"bundle {bundle.digest[:12]}",
        found=listed(gaps),
        wanted="every launch and tuning result that the build planned",
        mend="ship the bundle as it was built, or build it anew",
    )
