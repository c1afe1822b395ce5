"""Who does the work: the processes and GPUs of this host, or those of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Literal, Protocol

from ssd_aot.targets import Target

if TYPE_CHECKING:
    from ssd_aot.tuning.compiled_candidates import CompiledCandidates
    from ssd_aot.tuning.stations import Station

Workers = Literal["local", "ray"]


class Crew(Protocol):
    """`executor` takes compilations, `jobs` at a time; None: processes of this host."""

    @property
    def jobs(self) -> int: ...

    @property
    def executor(self) -> Executor | None: ...

    def has_gpu(self, target: Target) -> bool:
        """Whether there is a GPU of that model to measure on."""
        ...

    def check_gpu(self, target: Target) -> None:
        """Raises `HostError` where there is none, with what there is."""
        ...

    def stations(self, candidates: CompiledCandidates, date: str) -> list[Station]:
        """One for each GPU of the candidates' target, at least one; not started yet.

        `date` is that of the measurements. Raises as `check_gpu`.
        """
        ...


class LocalCrew:
    """`devices` are CUDA indices of the GPUs that measure: all of the target's model, if empty."""

    executor: Executor | None = None

    def __init__(self, jobs: int, devices: Sequence[int] = ()) -> None:
        self.jobs = jobs
        self._devices = tuple(dict.fromkeys(devices))

    def has_gpu(self, target: Target) -> bool:
        from ssd_aot.tuning.host import gpus_here

        return bool(gpus_here(target))

    def check_gpu(self, target: Target) -> None:
        from ssd_aot.tuning.device_measuring import check_device

        for index in self._chosen(target):
            check_device(target, index)

    def stations(self, candidates: CompiledCandidates, date: str) -> list[Station]:
        from ssd_aot.tuning.device_measuring import open_device
        from ssd_aot.tuning.host import process_stations

        self.check_gpu(candidates.target)
        devices = self._chosen(candidates.target)
        return list(process_stations(candidates, devices, open_device, date))

    def _chosen(self, target: Target) -> tuple[int, ...]:
        from ssd_aot.tuning.host import gpus_here

        return self._devices or gpus_here(target) or (0,)


def make_crew(
    workers: Workers,
    *,
    jobs: int | None,
    cores: int,
    devices: Sequence[int] = (),
    ray_address: str | None = None,
    on_notice: Callable[[str], None] | None = None,
) -> AbstractContextManager[Crew]:
    """The crew of a command's options; `jobs` None: the `cores` here, or the cluster's CPUs.

    Raises `HostError` without Ray and `ClusterLost` without a cluster.
    """
    if workers == "local":
        return nullcontext(LocalCrew(jobs or cores, devices))
    from ssd_aot.cluster.crew import ClusterCrew

    return ClusterCrew(ray_address, jobs=jobs, on_notice=on_notice)
