"""An engine's operation: its place, and its modules imported without the packages above them.

What a package does at its import, loading libraries that want a driver above all, has no part in a
launch. A package that is passed over is there for its folder alone; the modules themselves are
imported as they are installed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from ssd_aot.errors import HostError


class OperationEngine:
    """What engines share whose layers call one function of one module."""

    def __init__(self) -> None:
        self._operation: Any = None

    @contextmanager
    def _holding(self, operation: Any) -> Iterator[None]:
        """The function in use until the end of the block."""
        before, self._operation = self._operation, operation
        try:
            yield
        finally:
            self._operation = before

    def _adopt(self, module: str, function: str) -> bool:
        """Use what this process has imported; False where it has not, or is importing it still."""
        found = getattr(sys.modules.get(module), function, None)
        self._operation = found or self._operation
        return found is not None


def pass_over(packages: Sequence[str]) -> None:
    """From here on imports pass over what these packages do at theirs; parents before children.

    For a process of its own, in which the engine stays so. Raises HostError where a package is not
    installed.
    """
    for name in packages:
        if name not in sys.modules:
            _place(name)


def _place(name: str) -> None:
    parent, _, child = name.rpartition(".")
    path = list(sys.modules[parent].__path__) if parent else None
    found = PathFinder.find_spec(name, path)
    if found is None or found.submodule_search_locations is None:
        raise HostError(
            "the engine has no such package",
            where=name,
            found="no folder of that name" + (f" in {', '.join(path)}" if path else ""),
            wanted="a release of the engine that this version of ssd-aot knows",
            mend="see the README for the releases",
        )
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None, is_package=True)
    module.__path__ = list(found.submodule_search_locations)
    sys.modules[name] = module
    if parent:
        setattr(sys.modules[parent], child, module)


def operation_module(name: str) -> Any:
    """A module of an engine. Raises HostError where it cannot be imported here."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise HostError(
            "the engine's operation cannot be imported here",
            where=name,
            found=str(error),
            wanted="the engine and what it requires, as the image has them",
            mend="build inside the image",
        ) from error


def scan_module(name: str) -> Any:
    """The module of the whole operation, `….ssd_combined`, its scan's kernel being Triton's.

    Raises HostError as `operation_module` and `require_kernel`.
    """
    module = operation_module(name)
    scan = operation_module(name.replace("combined", "chunk_scan"))
    require_kernel(scan, "_chunk_scan_fwd_kernel")
    return module


def require_kernel(module: Any, name: str) -> None:
    """Raises HostError where the engine made its kernels plain functions."""
    kernel = getattr(module, name, None)
    if not hasattr(kernel, "fn"):
        raise HostError(
            "the engine did not take the stand-in for a GPU: its kernels are placeholders",
            where=f"{module.__name__}: {name}",
            found=type(kernel).__name__,
            wanted="a kernel of Triton's",
            mend="unset what makes the engine leave Triton out",
        )
