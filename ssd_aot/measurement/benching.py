"""Host and device time of the operation beside whatever engines are installed here, in one run."""

from __future__ import annotations

import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ssd_aot.bundle.store import Bundle
from ssd_aot.errors import HostError
from ssd_aot.measurement.contestants import Contestant, contestants
from ssd_aot.problems import make_problem
from ssd_aot.runtime.loading import load
from ssd_aot.signatures import Signature
from ssd_aot.tables import WIDTH, cut

HOST_ROUNDS = 12
LAYERS = 24
"""Calls in a row, as the layers of a step make them: few enough for the driver's queue."""

DEVICE_REPLAYS = 20
L2_FLUSH_BYTES = 256 * 2**20
"""Written between replays: several times the L2 cache of any target."""


@dataclass(frozen=True)
class Workload:
    """A layer's geometry and a batch: `lengths` tokens of each sequence."""

    name: str
    nheads: int
    headdim: int
    ngroups: int
    dstate: int
    lengths: tuple[int, ...]
    initial_states: bool = True


WORKLOADS = (
    Workload("512 tokens, 4 sequences", 128, 64, 8, 128, (128,) * 4),
    Workload("512 tokens, 1 sequence", 128, 64, 8, 128, (512,)),
    Workload("512 tokens, 64 sequences", 128, 64, 8, 128, (8,) * 64),
    Workload("512 tokens, 4 sequences, 16 heads", 16, 64, 1, 128, (128,) * 4),
    Workload("A: 8 x 1024", 128, 64, 8, 128, (1024,) * 8),
    Workload("B: 8 x 4096, no initial states", 128, 64, 8, 128, (4096,) * 8, False),
    Workload("C: 4 x 512", 128, 64, 8, 128, (512,) * 4),
    Workload("D: 1 x 8192, 16 heads", 16, 64, 1, 128, (8192,)),
    Workload("E: 8 x 1024, head dim 80", 128, 80, 8, 128, (1024,) * 8),
)


@dataclass(frozen=True)
class Timing:
    """Median, first and third quartile, in microseconds."""

    median_us: float
    low_us: float
    high_us: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        low, median, high = statistics.quantiles([s * 1e6 for s in seconds], n=4)
        return cls(round(median, 2), round(low, 2), round(high, 2))


@dataclass(frozen=True)
class Row:
    """One contestant on one workload; `device` is None where no graph could be captured."""

    workload: str
    contestant: str
    host: Timing
    device: Timing | None


@dataclass(frozen=True)
class Bench:
    """All rows of one run of the bundle with that digest, and the machine it ran on."""

    digest: str
    machine: dict[str, str]
    rows: tuple[Row, ...]
    absent: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        lines = cut(", ".join(f"{key} {value}" for key, value in self.machine.items()), WIDTH)
        for name, why in self.absent.items():
            lines += cut(f"not here: {name} ({why})", WIDTH)
        lines.append(f"{'workload':<36}{'contestant':<18}{'host us':>10}{'device us':>12}")
        for row in self.rows:
            device = f"{row.device.median_us:>12.1f}" if row.device else f"{'-':>12}"
            lines.append(
                f"{row.workload:<36}{row.contestant:<18}{row.host.median_us:>10.1f}{device}"
            )
        return "\n".join(lines)


def bench(bundle: Bundle, workloads: Sequence[Workload] = WORKLOADS) -> Bench:
    """Measure every contestant on every workload that the bundle covers, on GPU 0.

    Host times are of single calls among those of a step's layers; device times of replays of a
    captured graph, with the L2 cache flushed in between. Raises `HostError` without a GPU.
    """
    if not torch.cuda.is_available():
        raise HostError(
            "a benchmark needs a CUDA GPU",
            where="ssd-aot bench",
            found="no GPU here",
            wanted="a GPU that the bundle serves",
            mend="run it on the target GPU",
        )
    load(bundle.path)
    rows: list[Row] = []
    absent: dict[str, str] = {}
    for workload in workloads:
        problem = make_problem(_signature(workload), workload.lengths, device="cuda")
        entered, missing = contestants(problem)
        absent |= missing
        hosts = _host_times(entered)
        for contestant in entered:
            device = _device_time(contestant.call) if contestant.captured else None
            rows.append(Row(workload.name, contestant.name, hosts[contestant.name], device))
    return Bench(bundle.digest, _machine(), tuple(rows), absent)


def _signature(workload: Workload) -> Signature:
    count = len(workload.lengths)
    return Signature(
        model="bench", tp=1, nheads=workload.nheads, headdim=workload.headdim,
        dstate=workload.dstate, ngroups=workload.ngroups, conv_kernel=4, dtype="bf16",
        dt_dtype="bf16", param_dtype="bf16", state_dtype="fp32", chunk_size=128,
        has_initstates=workload.initial_states, is_cont_batched=True, num_seqs=(count, count),
        max_num_batched_tokens=sum(workload.lengths), D="head", z=False, dt_bias=True,
        dt_softplus=True, seq_idx=False, intermediate_states=False, layout="engine",
        lengths="any",
    )  # fmt: skip


def _host_times(entered: Sequence[Contestant]) -> dict[str, Timing]:
    """Times of single calls among those that the layers of a step make in a row; in rounds, so that
    drift hits all contestants."""
    times: dict[str, list[float]] = {contestant.name: [] for contestant in entered}
    for _ in range(HOST_ROUNDS):
        for contestant in entered:
            for _ in range(3):
                contestant.call()
            torch.cuda.synchronize()
            for _ in range(LAYERS):
                began = time.perf_counter()
                contestant.call()
                times[contestant.name].append(time.perf_counter() - began)
            torch.cuda.synchronize()
    return {name: Timing.of(values) for name, values in times.items()}


def _device_time(call: Callable[[], object]) -> Timing:
    graph = torch.cuda.CUDAGraph()
    call()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        call()
    flush = torch.empty(L2_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    seconds = []
    for _ in range(DEVICE_REPLAYS + 3):
        flush.zero_()
        start, stop = _event(), _event()
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        seconds.append(start.elapsed_time(stop) / 1e3)
    return Timing.of(seconds[3:])


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _machine() -> dict[str, str]:
    return {
        "GPU": torch.cuda.get_device_name(0),
        "driver": _driver_version(),
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "host": f"{platform.machine()} {sys.platform}",
    }


def _driver_version() -> str:
    try:
        with open("/proc/driver/nvidia/version") as file:
            words = file.readline().split()
    except OSError:
        return "unknown"
    return next((word for word in words if word[:1].isdigit() and "." in word), "unknown")
