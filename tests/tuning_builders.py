"""What tuning tests share: small candidate sets without real code, and a measurement on the CPU
whose results come from the reference and whose times and faults the test decides."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from bundle_builders import TOOLCHAIN, code_object
from signature_builders import signature
from torch import Tensor

from ssd_aot.bundle.manifest import VariantEntry
from ssd_aot.candidates import candidates
from ssd_aot.launches import Configuration, Launch
from ssd_aot.layouts import Blocking, Counts, Form, ScanLayout
from ssd_aot.measurement.reference import ReferenceResult, ssd_reference
from ssd_aot.ops.execution import Executor
from ssd_aot.plan import PlannedLaunch
from ssd_aot.signatures import Signature
from ssd_aot.targets import Target, target
from ssd_aot.tuning.compiled_candidates import (
    CandidateLaunch,
    CompiledCandidate,
    CompiledCandidates,
)
from ssd_aot.tuning.groups import calls_of
from ssd_aot.tuning.measuring import Scan
from ssd_aot.tuning.records import Session

H200 = target("h200")
SOURCES = tuple(
    (kernel, hashlib.sha256(kernel.encode()).hexdigest())
    for kernel in ("decay", "scan", "segment_states", "state_passing")
)
SESSION = Session.of(
    TOOLCHAIN, date="2026-01-02T03:04:05Z", device="NVIDIA H200", driver="570.1"
)  # fmt: skip
Fault = Callable[[Tensor, int], None]
"""Spoils the operation's output, given how many calls came before."""


def small(**fields: Any) -> Signature:
    """A signature whose problems a CPU answers in milliseconds."""
    sizes = {"nheads": 2, "headdim": 16, "dstate": 16, "ngroups": 1, "dtype": "fp32"}
    same = {"dt_dtype": "fp32", "param_dtype": "fp32", "num_seqs": (1, 8)}
    return signature(**{**sizes, **same, **fields})


BOTH = (small(), small(has_initstates=False))


def compiled(
    signatures: Sequence[Signature] = BOTH,
    *,
    gpu: Target = H200,
    most: int = 3,
    kernels: Sequence[str] = (),
    reasons: Mapping[int, str] | None = None,
) -> CompiledCandidates:
    """Every launch of these signatures with the first `most` of its candidates; those at the
    places in `reasons` have no code. With `kernels`, other kernels have one candidate."""
    needing: dict[Launch, list[str]] = {}
    for call in calls_of(signatures):
        for launch in call.launches:
            ids = needing.setdefault(launch, [])
            if call.signature.id not in ids:
                ids.append(call.signature.id)
    entries = []
    cubins: dict[str, bytes] = {}
    for launch, ids in sorted(needing.items(), key=lambda item: str(item[0])):
        searched = not kernels or launch.kernel in kernels
        offered = candidates(launch, gpu)[: most if searched else 1]
        made = []
        for place, configuration in enumerate(offered):
            data = f"{launch.identity} {configuration}".encode()
            code = code_object(data, gpu.arch, function=launch.kernel)
            reason = (reasons or {}).get(place, "") if searched else ""
            if not reason:
                cubins[code.sha256] = data
            made.append(CompiledCandidate(configuration, None if reason else code, reason))
        planned = PlannedLaunch(launch, gpu, offered, tuple(ids))
        entries.append(CandidateLaunch(planned, tuple(made)))
    return CompiledCandidates(gpu, TOOLCHAIN, SOURCES, tuple(signatures), tuple(entries), cubins)


def nan_in_one_row(out: Tensor, calls: int) -> None:
    out[out.shape[0] // 2] = float("nan")


def half_written(out: Tensor, calls: int) -> None:
    out[out.shape[0] // 2 :] = float("nan")


def other_bits_each_call(out: Tensor, calls: int) -> None:
    out.mul_(1 + 1e-6 * calls)


def a_crash(out: Tensor, calls: int) -> None:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")


FAULTS = (
    (nan_in_one_row, "outputs off by nan"),
    (half_written, "outputs off by nan"),
    (other_bits_each_call, "other bits at the second run"),
    (a_crash, "did not run: CUDA error: an illegal memory access"),
)
"""What a candidate does wrong, and what the record says of it."""


@dataclass
class ReferenceExecutor:
    """Writes the reference's results, then lets the faults of its variants spoil them.

    What a fault leaves out stays as the outputs were: it does not find another candidate's.
    """

    variants: Sequence[VariantEntry]
    faults: Mapping[tuple[str, Configuration], Fault]
    answers: dict[int, tuple[Mapping[str, Tensor], ReferenceResult]]
    calls: list[int]
    blocking: Blocking = field(default_factory=Blocking)

    def run(self, tensors: Mapping[str, Tensor], layout: ScanLayout, counts: Counts) -> None:
        result = self._answer(tensors, layout)
        tensors["out"].copy_(result.out)
        tensors["final_states"][tensors["final_slots"].long()] = result.final_states.to(
            tensors["final_states"].dtype
        )
        self.calls[0] += 1
        for variant in self.variants:
            fault = self.faults.get((variant.launch.kernel, variant.configuration))
            if fault is not None:
                fault(tensors["out"], self.calls[0])

    def _answer(self, tensors: Mapping[str, Tensor], layout: ScanLayout) -> ReferenceResult:
        key = tensors["x"].data_ptr()
        known = self.answers.get(key)
        if known is None or known[0]["x"] is not tensors["x"]:
            result = ssd_reference(
                tensors["x"], tensors["dt"], tensors["A"], tensors["B"], tensors["C"],
                tensors["spans"].diff().tolist(), D=tensors.get("D"), z=tensors.get("z"),
                dt_bias=tensors.get("dt_bias"), initial_states=tensors.get("initial_states"),
                dt_softplus=layout.dt_softplus, dt_limit=layout.dt_limit,
            )  # fmt: skip
            known = self.answers[key] = tensors, result
        return known[1]


@dataclass
class FakeMeasure:
    """Times by kernel and configuration in microseconds, 10 unless given; faults likewise."""

    times: Mapping[tuple[str, Configuration], float] = field(default_factory=dict)
    faults: Mapping[tuple[str, Configuration], Fault] = field(default_factory=dict)
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - a constant
    timed: list[str] = field(default_factory=list)
    lost: bool = False
    answers: dict[int, tuple[Mapping[str, Tensor], ReferenceResult]] = field(default_factory=dict)
    calls: list[int] = field(default_factory=lambda: [0])

    def executor(self, form: Form, variants: Sequence[VariantEntry]) -> Executor:
        return ReferenceExecutor(variants, self.faults, self.answers, self.calls)

    def median_us(self, executor: Executor, scans: Sequence[Scan]) -> float:
        assert isinstance(executor, ReferenceExecutor)
        self.timed.append(" + ".join(v.variant.identity for v in executor.variants))
        return sum(
            self.times.get((v.launch.kernel, v.configuration), 10.0) for v in executor.variants
        )

    def usable(self) -> bool:
        return not self.lost


def launch_of(made: CompiledCandidates, kernel: str, **constexprs: Any) -> CandidateLaunch:
    """The first launch of a kernel with these constexprs."""
    return next(
        entry
        for entry in made.launches
        if entry.planned.launch.kernel == kernel
        and constexprs.items() <= dict(entry.planned.launch.constexprs).items()
    )


def later(session: Session, date: str) -> Session:
    return replace(session, date=date)
