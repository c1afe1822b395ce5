"""Every contact with Triton's private parts, for the releases 3.6 to 3.9.

Beside each use of a private part stand the releases in which it was read or run, so that a new
Triton release changes this package alone.
"""

from ssd_aot.triton_compat.assembly import layout_can_be_fixed
from ssd_aot.triton_compat.cache_entries import compile_entry
from ssd_aot.triton_compat.captured import CapturedCandidate, CapturedLaunch, TuningResult
from ssd_aot.triton_compat.capturing import capturing
from ssd_aot.triton_compat.compilation import CompiledObject, compile_variant, warm_up
from ssd_aot.triton_compat.host_modules import (
    EXTENSION_SUFFIX,
    HostSource,
    build_host_module,
    driver_source,
)
from ssd_aot.triton_compat.kernel import kernel_function, source_hash
from ssd_aot.triton_compat.ptxas import check_ptxas
from ssd_aot.triton_compat.specialisation import describe_argument, describe_launch
from ssd_aot.triton_compat.stand_in import presented_to_triton
from ssd_aot.triton_compat.toolchain import Difference, same_toolchain, toolchain

__all__ = [
    "EXTENSION_SUFFIX",
    "CapturedCandidate",
    "CapturedLaunch",
    "CompiledObject",
    "Difference",
    "HostSource",
    "TuningResult",
    "build_host_module",
    "capturing",
    "check_ptxas",
    "compile_entry",
    "compile_variant",
    "describe_argument",
    "describe_launch",
    "driver_source",
    "kernel_function",
    "layout_can_be_fixed",
    "presented_to_triton",
    "same_toolchain",
    "source_hash",
    "toolchain",
    "warm_up",
]
