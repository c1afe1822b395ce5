"""The CPUs and GPUs of a Ray cluster as a crew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING

from ssd_aot.cluster.executor import ClusterExecutor
from ssd_aot.cluster.link import ClusterWorker, Link, Node
from ssd_aot.cluster.nodes import admit, compiler_identity, package_identity
from ssd_aot.errors import HostError
from ssd_aot.targets import Target

if TYPE_CHECKING:
    from ssd_aot.tuning.compiled_candidates import CompiledCandidates
    from ssd_aot.tuning.station_host import OpenDevice
    from ssd_aot.tuning.stations import Station


class ClusterCrew:
    """Connected until it is left. `jobs` limits the workers that compile: one a CPU otherwise.

    `on_notice` is told which nodes get no work and why, and of what is lost later on. `open_device`
    opens a GPU in the process that Ray started for it; None: as this package does.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        jobs: int | None = None,
        on_notice: Callable[[str], None] | None = None,
        open_device: OpenDevice | None = None,
    ) -> None:
        self._jobs = jobs
        self._on_notice = on_notice
        self._open_device = open_device
        self._link = Link(address)

    def __enter__(self) -> ClusterCrew:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if "executor" in self.__dict__:
            self.executor.shutdown(cancel_futures=True)
        self._link.close()

    @property
    def jobs(self) -> int:
        return self.executor.slots

    @cached_property
    def executor(self) -> ClusterExecutor:
        """On the nodes that compile as this host does. Raises `HostError` where none does."""
        nodes = [node for node in self._link.nodes() if node.cpus]
        admitted = self._admitted(nodes, compiler_identity, "a node with a CPU")
        executor = ClusterExecutor(
            self._link, admitted, slots=self._jobs, on_notice=self._on_notice
        )
        self._tell(
            f"ray: {_counted(executor.slots, 'worker')} on {_counted(len(admitted), 'node')}, "
            "to compile"
        )
        return executor

    def has_gpu(self, target: Target) -> bool:
        return bool(self._with_gpu(target))

    def check_gpu(self, target: Target) -> None:
        if not self.has_gpu(target):
            raise self._no_gpu(target)

    def stations(self, candidates: CompiledCandidates, date: str) -> list[Station]:
        from ssd_aot.tuning.remote_station import Opening, RemoteStation

        self.check_gpu(candidates.target)
        nodes = self._admitted(
            self._with_gpu(candidates.target), package_identity, f"a {candidates.target.name}"
        )
        self._tell(
            f"ray: {_counted(sum(node.gpus for node in nodes), 'GPU')} on "
            f"{_counted(len(nodes), 'node')}, to measure"
        )
        # Ray shows a process no other GPU than its own, so that is number 0.
        opening = Opening(candidates.target, 0, self._open_device or _opener())
        return [
            RemoteStation(
                f"{node} GPU {number}", partial(_hire, self._link, node), opening,
                candidates.cubins, candidates.toolchain, date,
            )
            for node in nodes
            for number in range(node.gpus)
        ]  # fmt: skip

    def _with_gpu(self, target: Target) -> list[Node]:
        return [
            node
            for node in self._link.nodes()
            if node.gpus and any(is_accelerator(name, target) for name in node.accelerators)
        ]

    def _admitted(
        self, nodes: Sequence[Node], identity: Callable[[], dict[str, str]], wanted: str
    ) -> list[Node]:
        admitted, refusals = admit(self._link, nodes, identity)
        for refusal in refusals:
            self._tell(str(refusal))
        if not admitted:
            raise HostError(
                "no node of the cluster can do the work",
                where=self._link.address,
                found="; ".join(map(str, refusals)) or "no such node",
                wanted=f"{wanted}, with this host's ssd-aot, Triton and Python",
                mend="install there what is here, or work without --workers ray",
            )
        return admitted

    def _no_gpu(self, target: Target) -> HostError:
        there = sorted({name for node in self._link.nodes() for name in node.accelerators})
        return HostError(
            f"the cluster has no {target.name}",
            where=self._link.address,
            found=", ".join(f"accelerator_type:{name}" for name in there) or "no accelerators",
            wanted=f"a node with GPU and accelerator_type of {target.name} among its resources",
            mend="add such a node, or start it with "
            f"--resources '{{\"accelerator_type:{target.name.upper()}\": 1}}'",
        )

    def _tell(self, text: str) -> None:
        if self._on_notice is not None:
            self._on_notice(text)


def is_accelerator(name: str, target: Target) -> bool:
    """Whether Ray's name of an accelerator is that of a target: the name that CUDA reports, its
    words joined by hyphens, whole (GeForce-RTX-4090) or its model alone (H200, RTX-PRO-6000). The
    GPU itself is asked when it is opened."""
    spoken = name.replace("-", " ")
    return name.lower() == target.name or target.is_device(spoken, target.capability)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _opener() -> OpenDevice:
    from ssd_aot.tuning.device_measuring import open_device

    return open_device


def _hire(link: Link, node: Node) -> ClusterWorker:
    return link.open(node, gpus=1)
