"""Ahead-of-time compiled Mamba2 SSD kernels: build, verify, load, launch."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ssd_aot import ops
    from ssd_aot.runtime.loading import load
    from ssd_aot.runtime.status import status

__version__ = "0.1.0"
__all__ = ["__version__", "load", "ops", "status"]


def __getattr__(name: str) -> Any:
    # torch takes a second to import: the command line and the build's workers do without it
    # until something here is used.
    if name == "load":
        from ssd_aot.runtime.loading import load

        return load
    if name == "ops":
        import importlib

        return importlib.import_module("ssd_aot.ops")
    if name == "status":
        from ssd_aot.runtime.status import status

        return status
    raise AttributeError(f"module 'ssd_aot' has no attribute {name!r}")
