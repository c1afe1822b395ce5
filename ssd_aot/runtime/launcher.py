"""Launching a prepared scan: everything that stays between calls is laid out once.

All kernels of a form read their arguments out of one frame of 8-byte cells; `cuLaunchKernelEx`
takes, for each kernel, an array of pointers into it. The frame begins with the cells that change
from call to call (tensors, workspaces, counts), which one `struct.pack_into` writes.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ssd_aot.bundle.manifest import VariantEntry
from ssd_aot.layouts import Counts, Form, ScanLayout
from ssd_aot.operation import (
    COUNT_NAMES,
    WORKSPACES,
    Extent,
    bindings,
    extents,
    grid_shape,
    static_values,
    workspace,
)
from ssd_aot.runtime import driver
from ssd_aot.runtime.workspaces import Workspaces, aligned_up

CELL_FORMATS = {"i32": "i4x", "i64": "q", "fp32": "f4x"}

DEPENDENTS = ("state_passing", "scan")
"""Kernels that may start before the launch in front of them ends, and wait for it themselves."""


@dataclass(frozen=True)
class LoadedVariant:
    """A variant whose function is loaded on one device."""

    entry: VariantEntry
    function: int


@dataclass(frozen=True)
class DeviceQueue:
    """What launches on one device share: the lock that keeps one call's launches together, so that
    two threads on one stream cannot mix them up in one workspace, and the workspaces."""

    device: int
    lock: threading.Lock
    workspaces: Workspaces


class PreparedScan:
    """One layout and form on one device, ready to launch. Safe to call from several threads.

    Holds no tensor of the caller's. `tensors` names the present ones in the order in which calls
    pass their addresses.
    """

    def __init__(
        self,
        queue: DeviceQueue,
        layout: ScanLayout,
        form: Form,
        variants: Sequence[LoadedVariant],
        tensors: Sequence[str],
    ) -> None:
        self._queue = queue
        self._layout = layout
        self._form = form
        changing = (*tensors, *WORKSPACES, *COUNT_NAMES)
        pointers = len(tensors) + len(WORKSPACES)
        changing_format = "<" + "Q" * pointers + CELL_FORMATS["i32"] * len(COUNT_NAMES)
        static: dict[str, int | float] = {"null": 0, **static_values(layout)}
        types = _types(variants, form)
        # Values that no kernel of this form takes still have their cell, as 64-bit integers.
        static_format = "<" + "".join(
            "q" if isinstance(value, int) and name not in types else CELL_FORMATS[types[name]]
            for name, value in static.items()
        )
        self._frame = ctypes.create_string_buffer(
            struct.calcsize(changing_format) + struct.calcsize(static_format)
        )
        self._pack = struct.Struct(changing_format).pack_into
        struct.pack_into(
            static_format, self._frame, struct.calcsize(changing_format), *static.values()
        )
        cells = {name: 8 * place for place, name in enumerate((*changing, *static))}
        self._launches = [self._launch_of(variant, cells) for variant in variants]
        self._extents = [
            extent
            for variant, (config, _) in zip(variants, self._launches, strict=True)
            for extent in self._lay_out_grid(variant, config)
        ]
        self._counts: Counts | None = None
        self._launch = driver.launch_kernel()

    def __call__(self, addresses: Iterable[int], counts: Counts, stream: int) -> None:
        """Launch on `stream` of the current device, which is this scan's.

        `addresses` are the tensors' in the order given at preparation.
        """
        queue = self._queue
        with queue.lock:
            if counts != self._counts:
                self._fit(counts)
            space, owner = queue.workspaces.take(self._workspace_bytes, stream)
            self._pack(
                self._frame, 0, *addresses, space, space + self._states_offset,
                space + self._decay_offset, counts.spans, counts.span_tokens, self._rows,
            )  # fmt: skip
            for config, arguments in self._launches:
                config.stream = stream
                status = self._launch(*arguments)
                if status:
                    self._launch_again(status, arguments)
        del owner

    def _fit(self, counts: Counts) -> None:
        """Set what the counts decide: programs, and where the workspaces lie. All layers of a step
        share their counts."""
        self._counts = None
        sizes = workspace(self._layout, counts, self._form)
        self._states_offset = aligned_up(sizes["decay_terms"])
        self._decay_offset = self._states_offset + aligned_up(sizes.get("states", 0))
        self._workspace_bytes = self._decay_offset + sizes.get("segment_decay", 0)
        named = extents(self._layout, counts, self._form)
        self._rows = named["rows"]
        for config, axis, extent in self._extents:
            setattr(config, axis, named[extent])
        self._counts = counts

    def bare_launches(self) -> tuple[tuple[Callable[..., int], tuple[object, ...]], ...]:
        """The driver calls of the last call alone, with its arguments, for measuring beside it."""
        return tuple((self._launch, arguments) for _, arguments in self._launches)

    def _launch_again(self, status: int, arguments: Sequence[object]) -> None:
        """After a failure: a thread that has made no CUDA call yet has no context; give it the
        device's. Raises `DriverError` for every other reason."""
        if status == driver.CUDA_ERROR_INVALID_CONTEXT:
            context = driver.primary_context(self._queue.device)
            driver.call("cuCtxSetCurrent", ctypes.c_void_p(context))
            status = self._launch(*arguments)
        driver.check(status, "cuLaunchKernelEx")

    def _lay_out_grid(
        self, variant: LoadedVariant, config: driver.LaunchConfig
    ) -> Iterator[tuple[driver.LaunchConfig, str, Extent]]:
        """Set the programs that stay; the axes that the counts decide, and by what."""
        entry = variant.entry
        shape = grid_shape(entry.launch.kernel, self._layout, self._form, entry.configuration)
        for axis, programs in zip(("grid_x", "grid_y", "grid_z"), shape, strict=True):
            if isinstance(programs, int):
                setattr(config, axis, programs)
            else:
                yield config, axis, programs

    def _launch_of(
        self, variant: LoadedVariant, cells: dict[str, int]
    ) -> tuple[driver.LaunchConfig, tuple[object, ...]]:
        """The launch configuration, still without a grid, and the arguments of
        cuLaunchKernelEx."""
        code, kernel = variant.entry.object, variant.entry.launch.kernel
        config = driver.LaunchConfig(
            block_x=code.num_warps * 32, block_y=1, block_z=1, shared_bytes=code.shared_bytes
        )
        if dict(variant.entry.configuration.constexprs).get("PDL") and kernel in DEPENDENTS:
            config.attributes = ctypes.addressof(driver.programmatic_serialization())
            config.num_attributes = 1
        function = ctypes.c_void_p(variant.function)
        return config, (ctypes.byref(config), function, self._places_of(variant, cells), None)

    def _places_of(self, variant: LoadedVariant, cells: dict[str, int]) -> ctypes.Array[Any]:
        """Where in the frame each of a kernel's arguments is."""
        bound = bindings(variant.entry.launch.kernel, self._form)
        # Triton appends the pointers to global and profile scratch memory; both are null here,
        # since the build refuses kernels that need either.
        names = [bound[name] for name, _ in variant.entry.object.parameters] + ["null", "null"]
        frame = ctypes.addressof(self._frame)
        return (ctypes.c_void_p * len(names))(
            *(frame + cells.get(name, cells["null"]) for name in names)
        )


def _types(variants: Sequence[LoadedVariant], form: Form) -> dict[str, str]:
    """The type of every value that some kernel of the form takes, by name."""
    types: dict[str, str] = {}
    for variant in variants:
        bound = bindings(variant.entry.launch.kernel, form)
        types |= {bound[name]: kind for name, kind in variant.entry.object.parameters}
    return types
