"""A driver on which Triton launches as on a GPU, but for the launches: nothing runs."""

from __future__ import annotations

from typing import Any

import triton
from triton.backends.nvidia.driver import CudaLauncher

from ssd_aot.triton_compat.stand_in import StandInDriver


class _Launcher:
    """Stands for the launcher of one compiled kernel."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self.metadata = metadata

    def __call__(self, *arguments: Any) -> None:
        pass


class TritonsLauncher(_Launcher):
    """Prepares a launch as Triton does, which in 3.6.0 wants a module for each signature."""

    def __init__(self, source: Any, metadata: Any) -> None:
        super().__init__(source, metadata)
        if triton.__version__.startswith("3.6."):
            CudaLauncher(source, metadata)


class ServingDriver(StandInDriver):
    """Counts the modules that are loaded, by kernel."""

    launcher_cls: type[_Launcher] = _Launcher

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        self.loaded: list[str] = []

    @property
    def utils(self) -> ServingDriver:
        return self

    def load_binary(
        self, name: str, cubin: bytes, shared_bytes: int, device: int
    ) -> tuple[int, int, int, int, int]:
        """(module, function, registers, spills, threads a block)"""
        assert cubin[:4] == b"\x7fELF"
        self.loaded.append(name)
        return len(self.loaded), len(self.loaded), 0, 0, 1024

    def get_benchmarker(self) -> Any:
        raise AssertionError("a tuning was measured")
