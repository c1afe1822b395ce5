"""Launching a prepared scan: everything that stays between calls is laid out once.

All kernels of a form read their arguments out of one frame of 8-byte cells; `cuLaunchKernelEx`
takes, for each kernel, an array of pointers into it. A call writes the cells that changed.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd_aot.bundle.manifest import VariantEntry
from ssd_aot.operation import (
    Counts,
    Form,
    ScanLayout,
    bindings,
    count_values,
    grid,
    static_values,
    workspace,
)
from ssd_aot.runtime import driver

ALIGNMENT_BYTES = 256
"""Where each workspace starts inside the one allocation; what torch's own allocator gives."""

CELL_FORMATS = {"i32": "i4x", "i64": "q", "fp32": "f4x"}


@dataclass(frozen=True)
class LoadedVariant:
    """A variant whose function is loaded on one device."""

    entry: VariantEntry
    function: int


class PreparedScan:
    """One layout and form on one device, ready to launch. Safe to call from several threads."""

    def __init__(
        self, device: int, layout: ScanLayout, form: Form, variants: Sequence[LoadedVariant]
    ) -> None:
        self._device = device
        self._layout = layout
        self._form = form
        self._variants = tuple(variants)
        self._lock = threading.Lock()
        self._launch = driver.driver().cuLaunchKernelEx
        types = self._cell_types()
        self._names = tuple(types)
        self._pointers = tuple(name for name, kind in types.items() if kind.startswith("*"))
        self._format = "<" + "".join(
            "Q" if kind.startswith("*") else CELL_FORMATS[kind] for kind in types.values()
        )
        self._static = static_values(layout)
        self._frame = ctypes.create_string_buffer(struct.calcsize(self._format))
        self._kernels = tuple(self._kernel(variant) for variant in self._variants)

    def _cell_types(self) -> dict[str, str]:
        """Every cell by name with its type: the values of the call that some kernel takes."""
        types: dict[str, str] = {"null": "*i8"}
        for variant in self._variants:
            bound = bindings(variant.entry.launch.kernel, self._form)
            for name, kind in variant.entry.object.parameters:
                types[bound[name]] = kind
        return types

    def _kernel(
        self, variant: LoadedVariant
    ) -> tuple[driver.LaunchConfig, int, ctypes.Array[ctypes.c_void_p]]:
        code = variant.entry.object
        bound = bindings(variant.entry.launch.kernel, self._form)
        base = ctypes.addressof(self._frame)
        # Triton appends the pointers to global and profile scratch memory; both are null here,
        # since the build refuses kernels that need either.
        cells = [self._names.index(bound[name]) for name, _ in code.parameters]
        cells += [self._names.index("null")] * 2
        places = (ctypes.c_void_p * len(cells))(*(base + 8 * cell for cell in cells))
        config = driver.LaunchConfig(
            block_x=code.num_warps * 32, block_y=1, block_z=1, shared_bytes=code.shared_bytes
        )
        return config, variant.function, places

    def __call__(self, tensors: Mapping[str, Tensor], counts: Counts, stream: int) -> None:
        """Launch on `stream` of this device; tensors are those the layout was made from."""
        sizes = workspace(self._layout, counts, self._form)
        total = sum(_aligned(size) for size in sizes.values())
        space = torch.empty(total, dtype=torch.uint8, device=torch.device("cuda", self._device))
        values: dict[str, int | float] = {"null": 0, "final_slots": 0}
        values |= self._static | count_values(self._layout, counts)
        for name, tensor in tensors.items():
            values[name] = tensor.data_ptr()
        address = space.data_ptr()
        for name, size in sizes.items():
            values[name] = address
            address += _aligned(size)
        with self._lock:
            struct.pack_into(self._format, self._frame, 0, *(values[n] for n in self._names))
            for variant, (config, function, places) in zip(
                self._variants, self._kernels, strict=True
            ):
                entry = variant.entry
                config.grid_x, config.grid_y, config.grid_z = grid(
                    entry.launch.kernel, self._layout, counts, self._form, entry.configuration
                )
                config.stream = stream
                self._run(config, function, places)

    def _run(
        self, config: driver.LaunchConfig, function: int, places: ctypes.Array[ctypes.c_void_p]
    ) -> None:
        handle = ctypes.c_void_p(function)
        status = self._launch(ctypes.byref(config), handle, places, None)
        if status == driver.CUDA_ERROR_INVALID_CONTEXT:
            # A thread that has made no CUDA call yet has no context; give it the device's.
            context = ctypes.c_void_p(driver.primary_context(self._device))
            driver.call("cuCtxSetCurrent", context)
            status = self._launch(ctypes.byref(config), handle, places, None)
        if status:
            driver.check(status, "cuLaunchKernelEx")


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
