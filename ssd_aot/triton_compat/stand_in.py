"""A driver that answers Triton's questions for a GPU that need not be here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver as driver_slot

from ssd_aot.errors import HostError
from ssd_aot.targets import Target


class StandInDriver:
    """What launch code and the compiler ask of Triton's active driver (3.6.0 to 3.9.0).

    It has no functions that load or launch: whatever would run on a GPU fails by name.
    """

    def __init__(self, target: Target) -> None:
        self._target = target

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", self._target.compute_capability, 32)

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        return self._target.capability

    @property
    def utils(self) -> StandInDriver:
        return self

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {
            "max_shared_mem": self._target.shared_bytes_optin,
            "max_num_regs": 65536,
            "multiprocessor_count": self._target.multiprocessors,
            "warpSize": 32,
        }

    def __getattr__(self, name: str) -> Any:
        raise HostError(
            "launch code asked the GPU for what only a GPU can answer",
            where=f"triton's driver: {name}",
            found=f"no {self._target.name} is here",
            wanted="launch code that runs on tensors without memory",
            mend="report the engine and its version; its builtin counterpart can be built",
        )


@contextmanager
def presented_to_triton(target: Target) -> Iterator[None]:
    """Triton takes `target` for the GPU at hand until the end of the block."""
    # As in `compilation`: `reset_active` would look for a GPU (3.6.0, 3.7.1, 3.8.0, 3.9.0).
    before = driver_slot._active
    driver_slot.set_active(StandInDriver(target))
    try:
        yield
    finally:
        driver_slot._active = before
