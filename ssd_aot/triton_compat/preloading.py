"""Kernels put where Triton keeps those it has launched before, from its own cache's entries."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import triton
from triton._C.libtriton import get_cache_invalidating_env_vars
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel, make_backend
from triton.runtime.build import platform_key
from triton.runtime.cache import get_cache_key
from triton.runtime.driver import driver

from ssd_aot.bundle.manifest import VariantEntry
from ssd_aot.errors import BuildError
from ssd_aot.triton_compat.cache_entries import launch_source
from ssd_aot.triton_compat.compilation import launch_options, warm_up
from ssd_aot.triton_compat.forcing import tuner_of
from ssd_aot.triton_compat.kernel import kernel_function
from ssd_aot.triton_compat.specialisation import describe_argument


class _NothingStored(Exception):
    """In the place of a measurement."""


def current_arch() -> tuple[int, int]:
    """The compute capability of the device that Triton would launch on."""
    number = int(driver.active.get_current_target().arch)
    return number // 10, number % 10


def ready_for_look_ups(numbers: Iterable[int]) -> None:
    """Works out now what Triton would at its first launch on a GPU of one of these architectures
    (90: sm_90): the hash of itself, ptxas' version and the platform, for which it starts programs,
    and what it imports to tell arguments apart."""
    warm_up()
    # Each is kept for the process (3.6.0, 3.7.1, 3.8.0, 3.9.0).
    platform_key()
    for number in numbers:
        make_backend(GPUTarget("cuda", number, 32)).hash()
    describe_argument("argument", 0)


def preload_kernel(
    entry: VariantEntry, key: str, launch_key: str, *, load_module: bool = True
) -> int:
    """Look a variant up for the current device, and load its module there, which its first launch
    does otherwise; 0 where the process has it already, and where the kernel as it is imported here
    is not the one of `key`, which Triton would compile."""
    try:
        function = kernel_function(entry.launch.kernel)
    except BuildError:
        return 0
    device = driver.active.get_current_device()
    # {launch key: kernel} is the first of the five of a device's caches (3.6.0 to 3.9.0).
    kernels, _, target, _, _ = function.device_caches[device]
    known = kernels.get(launch_key)
    if known is not None:
        if load_module and isinstance(known, CompiledKernel):
            known._init_handles()
        return 0
    options = launch_options(entry.variant, target.arch)
    backend = make_backend(target)
    source = launch_source(function, entry.variant, backend, options)
    named = get_cache_key(
        source, backend, backend.parse_options(options), get_cache_invalidating_env_vars()
    )
    if hashlib.sha256(named.encode()).hexdigest() != key:
        return 0
    kernel = triton.compile(source, target=target, options=options)
    if load_module:
        kernel._init_handles()
    kernels[launch_key] = kernel
    return 1


def preload_tuning(kernel: str, stored: dict[str, Any]) -> None:
    """Let an autotuner look up the stored choice of a key: {"key": [...], "configs_timings": …}.

    Triton's own look-up holds it against the candidates that there are now. Those of a tuner that
    prunes are known with a launch alone: its look-up is left to the first.
    """
    found = tuner_of(kernel)
    if found is None or found.early_config_prune or found.perf_model:
        return
    key = tuple(stored["key"])
    if key not in found.cache:
        try:
            # (tuning key, candidates, measurement): 3.6.0 to 3.9.0.
            found.check_disk_cache(key, found.configs, _refuse)
        except _NothingStored:
            return


def _refuse() -> None:
    raise _NothingStored
