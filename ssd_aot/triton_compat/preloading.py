"""Kernels put where Triton keeps those it has launched before, from its own cache's entries."""

from __future__ import annotations

import importlib
from typing import Any

import triton
from triton.compiler import make_backend
from triton.runtime.autotuner import Autotuner, Config
from triton.runtime.driver import driver

from ssd_aot.bundle.manifest import VariantEntry
from ssd_aot.triton_compat.cache_entries import launch_source
from ssd_aot.triton_compat.compilation import launch_options
from ssd_aot.triton_compat.kernel import kernel_function


def current_arch() -> tuple[int, int]:
    """The compute capability of the device that Triton would launch on."""
    number = int(driver.active.get_current_target().arch)
    return number // 10, number % 10


def preload_kernel(entry: VariantEntry, launch_key: str) -> int:
    """Load a variant's module on the current device; 0 where the process has it already."""
    function = kernel_function(entry.launch.kernel)
    device = driver.active.get_current_device()
    # {launch key: kernel} is the first of the five of a device's caches (3.6.0 to 3.9.0).
    kernels, _, target, _, _ = function.device_caches[device]
    if launch_key in kernels:
        return 0
    options = launch_options(entry.variant, target.arch)
    source = launch_source(function, entry.variant, make_backend(target), options)
    kernel = triton.compile(source, target=target, options=options)
    kernel._init_handles()
    kernels[launch_key] = kernel
    return 1


def preload_tuning(kernel: str, stored: dict[str, Any]) -> None:
    """Give an autotuner a stored choice: {"key": [...], "configs_timings": [[config, …]]}."""
    module, _, name = kernel.partition(":")
    found: Any = getattr(importlib.import_module(module), name, None)
    while found is not None and not isinstance(found, Autotuner):
        found = getattr(found, "fn", None)
    if found is not None:
        key = tuple(stored["key"])
        found.cache.setdefault(key, Config(**stored["configs_timings"][0][0]))
