"""The part of the CUDA driver API that serving needs, through ctypes: no compiler, no Triton.

Names and numbers are those of cuda.h, CUDA 12 and 13.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from ssd_aot.errors import HostError, SsdAotError

CUDA_ERROR_INVALID_CONTEXT = 201
CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75
CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76
CU_STREAM_CAPTURE_MODE_RELAXED = 2
CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6
DEFAULT_SHARED_BYTES = 48 * 1024
"""What a block may use of dynamic shared memory without asking for more."""


class DriverError(SsdAotError):
    """A CUDA driver call failed."""


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid_x", ctypes.c_uint),
        ("grid_y", ctypes.c_uint),
        ("grid_z", ctypes.c_uint),
        ("block_x", ctypes.c_uint),
        ("block_y", ctypes.c_uint),
        ("block_z", ctypes.c_uint),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("num_attributes", ctypes.c_uint),
    )


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: an id and a 64-byte union."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("pad", ctypes.c_char * 4),
        ("value", ctypes.c_char * 64),
    )


@dataclass(frozen=True)
class Device:
    """A CUDA device as the driver knows it."""

    index: int
    name: str
    capability: tuple[int, int]


@cache
def driver() -> ctypes.CDLL:
    """libcuda with its device list initialised. Raises `HostError` where there is no driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise HostError(
            "the CUDA driver library cannot be loaded",
            where="libcuda.so.1",
            found=str(error),
            wanted="an NVIDIA driver",
            mend="run on a host with an NVIDIA GPU and its driver (in a container: --gpus)",
        ) from error
    check(library.cuInit(0), "cuInit", library)
    return library


def check(status: int, call: str, library: ctypes.CDLL | None = None) -> None:
    """Raise `DriverError` for a status other than 0, with the driver's own words."""
    if status == 0:
        return
    text = ctypes.c_char_p()
    (library or driver()).cuGetErrorString(status, ctypes.byref(text))
    found = f"error {status}: {(text.value or b'unknown').decode()}"
    raise DriverError("a CUDA driver call failed", where=call, found=found, wanted="success")


def call(name: str, *arguments: object) -> None:
    """Call a driver function by name; a status other than 0 raises `DriverError`."""
    library = driver()
    check(getattr(library, name)(*arguments), name, library)


@cache
def launch_kernel() -> Any:
    """cuLaunchKernelEx, called with the interpreter's lock held: it returns in 3 us, and giving
    the lock up and taking it back costs more than it frees."""
    driver()
    return ctypes.PyDLL("libcuda.so.1").cuLaunchKernelEx


@cache
def programmatic_serialization() -> LaunchAttribute:
    """The launch attribute of a kernel that may start before the one in front of it ends."""
    allowed = (1).to_bytes(4, "little")
    attribute = LaunchAttribute(id=CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
    ctypes.memmove(ctypes.addressof(attribute) + LaunchAttribute.value.offset, allowed, 4)
    return attribute


def device(index: int) -> Device:
    handle, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    call("cuDeviceGet", ctypes.byref(handle), index)
    name = ctypes.create_string_buffer(128)
    call("cuDeviceGetName", name, len(name), handle)
    for attribute, value in (
        (CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, major),
        (CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, minor),
    ):
        call("cuDeviceGetAttribute", ctypes.byref(value), attribute, handle)
    return Device(index, name.value.decode(), (major.value, minor.value))


@cache
def primary_context(index: int) -> int:
    """The device's primary context, which torch uses too; kept for the life of the process."""
    handle, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuDeviceGet", ctypes.byref(handle), index)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
    assert context.value is not None
    return context.value


@contextmanager
def context_of(index: int) -> Iterator[None]:
    """The device's primary context current, and loading allowed while a stream is captured."""
    mode = ctypes.c_int(CU_STREAM_CAPTURE_MODE_RELAXED)
    call("cuCtxPushCurrent_v2", ctypes.c_void_p(primary_context(index)))
    call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    try:
        yield
    finally:
        call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
        call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


def load_function(cubin: bytes, name: str, shared_bytes: int) -> int:
    """Load a cubin into the current context and return the function's handle.

    The module stays loaded for the life of the process.
    """
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuModuleLoadData", ctypes.byref(module), cubin)
    call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
    if shared_bytes > DEFAULT_SHARED_BYTES:
        call("cuFuncSetAttribute", function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
             shared_bytes)  # fmt: skip
    assert function.value is not None
    return function.value
