"""Triton's cache manager that writes down what is asked of it, and leaves everything as it is.

Named to Triton by the environment, which processes pass on to those they spawn and fork. It hands
all questions on to the manager that the program would have had. Triton makes one manager for each
key that it looks up (3.6.0 to 3.9.0).
"""

from __future__ import annotations

import importlib
import os
from base64 import b32decode
from typing import Any

from triton.runtime.cache import CacheManager, FileCacheManager

from ssd_aot.recording.environment import INNER, JOURNAL
from ssd_aot.recording.writing import EventWriter

TUNING = ".autotune.json"

WRITER = EventWriter(os.environ.get(JOURNAL, ""))


class RecordingCacheManager(CacheManager):  # type: ignore[misc]
    """Records one key's look-ups."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        self._hex = b32decode(key + "=" * (-len(key) % 8)).hex()
        self._own = not (override or dump)
        self._inner = _inner_class()(key, override=override, dump=dump)

    def get_group(self, filename: str) -> dict[str, str] | None:
        if self._own:
            WRITER.compilation(self._hex)
        found: dict[str, str] | None = self._inner.get_group(filename)
        return found

    def get_file(self, filename: str) -> str | None:
        found: str | None = self._inner.get_file(filename)
        if self._own and filename.endswith(TUNING):
            WRITER.tuning(found)
        return found

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        if self._own and filename.endswith(TUNING):
            WRITER.tuned(data)
        return str(self._inner.put(data, filename, binary))

    def put_group(self, filename: str, group: dict[str, str]) -> str:
        return str(self._inner.put_group(filename, group))


def _inner_class() -> Any:
    named = os.environ.get(INNER, "")
    if not named:
        return FileCacheManager
    module, _, name = named.partition(":")
    return getattr(importlib.import_module(module), name)
