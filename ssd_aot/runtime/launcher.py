"""Launching a prepared scan: everything that stays between calls is laid out once.

All kernels of a form read their arguments out of one frame of 8-byte cells; `cuLaunchKernelEx`
takes, for each kernel, an array of pointers into it. The frame begins with the cells that change
from call to call (tensors, workspaces, counts), which one `struct.pack_into` writes.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ssd_aot.bundle.manifest import VariantEntry
from ssd_aot.operation import (
    COUNT_NAMES,
    WORKSPACES,
    Counts,
    Form,
    ScanLayout,
    bindings,
    decay_bytes,
    grid_shape,
    static_values,
)
from ssd_aot.runtime import driver
from ssd_aot.runtime.workspaces import Workspaces, aligned_up

CELL_FORMATS = {"i32": "i4x", "i64": "q", "fp32": "f4x"}
GRID_FIELDS = ("grid_x", "grid_y", "grid_z")
EXTENTS = ("rows", "spans", "segments", "sequences")


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
        self._segmented = form == "segments"
        self._chunk = layout.blocking.chunk
        self._segment = 0 if layout.chunk_states else layout.blocking.segment
        self._decay_bytes = decay_bytes(layout)
        self._cell_bytes = layout.nheads * layout.headdim * layout.dstate * 4
        self._nheads = layout.nheads
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
        self._cells = {name: 8 * place for place, name in enumerate((*changing, *static))}
        self._launch = driver.launch_kernel()
        self._kernels = [self._kernel(variant, layout, form) for variant in variants]

    def __call__(self, addresses: Iterable[int], counts: Counts, stream: int) -> None:
        """Launch on `stream` of the current device, which is this scan's.

        `addresses` are the tensors' in the order given at preparation.
        """
        tokens, spans, sequences, span_tokens = counts
        rows = tokens // self._chunk + spans
        total = decay_size = aligned_up(rows * self._decay_bytes)
        states = parts = 0
        if self._segmented:
            parts = tokens // self._segment + spans if self._segment else spans
            states = aligned_up(parts * self._cell_bytes)
            total += states + parts * self._nheads * 4
        extents = (rows, spans, parts, sequences)
        queue = self._queue
        with queue.lock:
            space, owner = queue.workspaces.take(total, stream)
            cells = space + decay_size
            self._pack(
                self._frame, 0, *addresses, space, cells, cells + states, spans, span_tokens, rows
            )
            for field, extent, config, arguments in self._kernels:
                setattr(config, field, extents[extent])
                config.stream = stream
                status = self._launch(*arguments)
                if status:
                    self._launch_again(status, arguments)
        del owner

    def bare_launches(self) -> tuple[tuple[Callable[..., int], tuple[object, ...]], ...]:
        """The driver calls of the last call alone, with its arguments, for measuring beside it."""
        return tuple((self._launch, kernel.arguments) for kernel in self._kernels)

    def _launch_again(self, status: int, arguments: Sequence[object]) -> None:
        """After a failure: a thread that has made no CUDA call yet has no context; give it the
        device's. Raises `DriverError` for every other reason."""
        if status == driver.CUDA_ERROR_INVALID_CONTEXT:
            context = driver.primary_context(self._queue.device)
            driver.call("cuCtxSetCurrent", ctypes.c_void_p(context))
            status = self._launch(*arguments)
        driver.check(status, "cuLaunchKernelEx")

    def _kernel(self, variant: LoadedVariant, layout: ScanLayout, form: Form) -> _Kernel:
        code = variant.entry.object
        kernel = variant.entry.launch.kernel
        bound = bindings(kernel, form)
        # Triton appends the pointers to global and profile scratch memory; both are null here,
        # since the build refuses kernels that need either.
        names = [bound[name] for name, _ in code.parameters] + ["null", "null"]
        cells, frame = self._cells, ctypes.addressof(self._frame)
        places = (ctypes.c_void_p * len(names))(
            *(frame + cells.get(name, cells["null"]) for name in names)
        )
        shape = grid_shape(kernel, layout, form, variant.entry.configuration)
        fixed = {f: e for f, e in zip(GRID_FIELDS, shape, strict=True) if isinstance(e, int)}
        ((field, extent),) = [
            (f, e) for f, e in zip(GRID_FIELDS, shape, strict=True) if isinstance(e, str)
        ]
        config = driver.LaunchConfig(
            **fixed, block_x=code.num_warps * 32, block_y=1, block_z=1,
            shared_bytes=code.shared_bytes,
        )  # fmt: skip
        arguments = (ctypes.byref(config), ctypes.c_void_p(variant.function), places, None)
        return _Kernel(field, EXTENTS.index(extent), config, arguments)


class _Kernel(NamedTuple):
    """A launch configuration, the one grid field that changes with the index of its extent in
    `EXTENTS`, and the arguments of cuLaunchKernelEx."""

    field: str
    extent: int
    config: driver.LaunchConfig
    arguments: tuple[object, ...]


def _types(variants: Sequence[LoadedVariant], form: Form) -> dict[str, str]:
    """The type of every value that some kernel of the form takes, by name."""
    types: dict[str, str] = {}
    for variant in variants:
        bound = bindings(variant.entry.launch.kernel, form)
        types |= {bound[name]: kind for name, kind in variant.entry.object.parameters}
    return types
