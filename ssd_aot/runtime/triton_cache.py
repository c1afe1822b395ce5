"""Triton's cache manager that looks into bundles first.

Named to Triton as `TRITON_CACHE_MANAGER=ssd_aot.runtime.triton_cache:BundleCacheManager`, or set as
`knobs.cache.manager_class`. Triton makes one for each key that it looks up (3.6.0 to 3.9.0). It
writes nothing into a bundle, and is indifferent to where Triton's own cache is or moves to.
"""

from __future__ import annotations

import os
from base64 import b32decode
from typing import Any

from triton import knobs
from triton.runtime.cache import CacheManager, FileCacheManager

from ssd_aot.errors import HostError
from ssd_aot.runtime.triton_service import SERVICE

_TUNING = ".autotune.json"


class BundleCacheManager(CacheManager):  # type: ignore[misc]
    """Serves one key: compiled kernels as groups, tuning results and host modules as files.

    What no bundle has goes on to Triton's ordinary cache, or is refused in strict mode.
    """

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        _load_what_the_environment_names()
        self._key = key
        self._hex = b32decode(key + "=" * (-len(key) % 8)).hex()
        self._own = not (override or dump)
        self._arguments = (key, override, dump)

    def get_group(self, filename: str) -> dict[str, str] | None:
        if self._own:
            found = SERVICE.group(self._hex, filename)
            if found is not None:
                return found
        ordinary = self._ordinary().get_group(filename) if self._ordinary_has() else None
        if not ordinary and self._own:
            SERVICE.missed(self._hex, filename)
        return ordinary or None

    def get_file(self, filename: str) -> str | None:
        if self._own:
            found = SERVICE.file(self._hex, filename)
            if found is not None:
                return found
        ordinary = self._ordinary().get_file(filename) if self._ordinary_has() else None
        if not ordinary and self._own:
            SERVICE.missed(self._hex, filename)
        return ordinary or None

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        try:
            return str(self._ordinary().put(data, filename, binary))
        except (OSError, RuntimeError) as error:
            if filename.endswith(_TUNING):
                return filename  # The process has its choice, and nobody reads the file again.
            raise self._cannot_be_kept(filename, error) from error

    def put_group(self, filename: str, group: dict[str, str]) -> str:
        try:
            return str(self._ordinary().put_group(filename, group))
        except (OSError, RuntimeError) as error:
            raise self._cannot_be_kept(filename, error) from error

    def _ordinary_has(self) -> bool:
        """Whether there is a folder to look into: the ordinary manager makes one even to look."""
        if not self._own:
            return True
        folder = knobs.cache.dir
        return bool(folder) and os.path.isdir(os.path.join(folder, self._key))

    def _ordinary(self) -> Any:
        key, override, dump = self._arguments
        manager = FileCacheManager(key, override=override, dump=dump)
        # A group names its files by these paths, and the working folder may change (the attribute:
        # 3.6.0 to 3.9.0).
        manager.cache_dir = os.path.abspath(manager.cache_dir)
        return manager

    def _cannot_be_kept(self, filename: str, error: Exception) -> HostError:
        """Triton's own words would tell of a folder, where the kernel is what matters."""
        bundles = ", ".join(str(one.bundle.path) for one in SERVICE.served) or "no bundle"
        folder = knobs.cache.dir
        return HostError(
            "Triton compiled what no bundle has, and has no place to keep it",
            where=filename.removeprefix("__grp__"),
            found=f"key {self._hex}; TRITON_CACHE_DIR {folder or 'is empty'}: "
            + str(getattr(error, "strerror", "") or error),
            wanted=f"an entry in what is in service ({bundles}), or a folder to write to",
            mend="build a bundle that covers it, or set TRITON_CACHE_DIR to a writable folder",
        )


def _load_what_the_environment_names() -> None:
    """A child process that was only given environment variables loads at its first look-up."""
    if SERVICE.served or SERVICE.asked:
        return
    SERVICE.asked = True
    from ssd_aot.runtime.engine_loading import load_from_environment

    load_from_environment()
