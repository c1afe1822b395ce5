"""Where launch code and kernels come from, and which of those places this release can read."""

from __future__ import annotations

import difflib

from ssd_aot.engines.engine import ENGINES, require_installed
from ssd_aot.errors import HostError, UsageError
from ssd_aot.spec_reading import SOURCES

AVAILABLE = ("builtin",)


def require_source(name: str, where: str) -> None:
    """Raises UsageError for what is no source, HostError for one that cannot be read here.

    `where` is the option or field that named it.
    """
    if name in AVAILABLE:
        return
    if name in ENGINES:
        require_installed(name, where)
        return
    if name in SOURCES:
        raise HostError(
            "this release builds from no such source",
            where=where,
            found=name,
            wanted=", ".join((*AVAILABLE, *ENGINES)),
            mend="build the builtin kernels (--source builtin)",
        )
    near = difflib.get_close_matches(name.lower(), SOURCES, n=1)
    raise UsageError(
        "unknown source",
        where=where,
        found=name,
        wanted=", ".join(SOURCES),
        mend=f"write {near[0]}" if near else "",
    )
