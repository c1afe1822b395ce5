"""Spec files for tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from ssd_aot.errors import SpecError
from ssd_aot.spec import load_spec

SMALL = """\
version: 1
models:
  small: {nheads: 32, headdim: 64, dstate: 128, ngroups: 8}
"""


def write_spec(folder: Path, text: str, name: str = "spec.yaml") -> Path:
    """Writes a spec file and returns its path."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refused(*paths: Path) -> SpecError:
    """The error that loading these files together raises."""
    with pytest.raises(SpecError) as caught:
        load_spec(paths)
    assert caught.value.exit_code == 2
    return caught.value
