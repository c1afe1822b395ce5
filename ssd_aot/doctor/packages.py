"""Engines and optional extras that are installed, by their metadata alone: none is imported."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator

from ssd_aot.doctor.diagnosis import Item
from ssd_aot.engines.engine import ENGINES

EXTRAS = {"report": ("jinja2", "matplotlib"), "ray": ("ray",)}
"""By extra of this package, what it installs."""

_FOR = {"report": "ssd-aot report", "ray": "--workers ray"}


def package_items() -> Iterator[Item]:
    engines = {name: _version(name) for name in ENGINES}
    here = ", ".join(f"{name} {version}" for name, version in engines.items() if version)
    none = "none is installed, so no engine's own kernels can be built or served here"
    yield Item("ok" if here else "note", "engines", here or none)
    for extra, names in EXTRAS.items():
        versions = {name: _version(name) for name in names}
        missing = [name for name, version in versions.items() if not version]
        if missing:
            what = f"is not installed; {_FOR[extra]} needs it"
            mend = f"pip install 'ssd-aot[{extra}]'"
            yield Item("note", f"extra {extra}", what, f"no {', '.join(missing)}", "", mend)
        else:
            found = ", ".join(f"{name} {version}" for name, version in versions.items())
            yield Item("ok", f"extra {extra}", found)


def _version(name: str) -> str:
    """The version of a distribution; empty where there is none, `?` where it does not tell."""
    try:
        return str(importlib.metadata.version(name) or "?")
    except importlib.metadata.PackageNotFoundError:
        return ""
    except Exception:
        # Metadata that cannot be read or parsed: the distribution is there all the same.
        return "?"
