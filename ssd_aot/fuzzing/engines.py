"""Fuzzing a bundle or plan of an engine's kernels: a process for each target, as for tracing."""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Collection, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack

from ssd_aot.engines.engine import engine
from ssd_aot.engines.presenting import presented
from ssd_aot.fuzzing.fuzzer import FuzzReport, Held, fuzz
from ssd_aot.fuzzing.operation import OperationLaunchCode
from ssd_aot.progress import ProgressPrinter
from ssd_aot.spec import Spec
from ssd_aot.targets import target
from ssd_aot.triton_compat import CapturedLaunch, capturing

LAUNCH_CODE = {
    "vllm": "VllmLaunchCode",
    "sglang": "SglangLaunchCode",
    "mamba_ssm": "MambaSsmLaunchCode",
    "tensorrt_llm": "TensorRtLlmLaunchCode",
}
"""The engines whose calls are drawn here, each with its launch code in `fuzzing.NAME`."""


def fuzz_engine(
    spec: Spec,
    there: Sequence[Held],
    *,
    batches: int,
    seed: int,
    planned: Collection[tuple[str, str]] = (),
) -> FuzzReport:
    """`fuzz` for each target in a process in which the engine is imported for it; one report."""
    reports = []
    for held in there:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
            done = pool.submit(_fuzz_target, spec, held, batches, seed, frozenset(planned))
            reports.append(done.result())
    return FuzzReport(
        batches=batches,
        seed=seed,
        # The same batches are drawn for each target.
        cpu_s=sum(report.cpu_s for report in reports) / len(reports),
        held=sum(report.held for report in reports),
        asked=sum(report.asked for report in reports),
        missing=sum(report.missing for report in reports),
        misses=tuple(miss for report in reports for miss in report.misses),
    )


def _fuzz_target(
    spec: Spec, held: Held, batches: int, seed: int, planned: frozenset[tuple[str, str]]
) -> FuzzReport:
    gpu = target(held.target.name)
    code: OperationLaunchCode | None = None

    def report(launch: CapturedLaunch) -> None:
        if code is not None:
            code.captured(launch)

    with ExitStack() as stack:
        stack.enter_context(presented(gpu))
        stack.enter_context(capturing(report))
        stack.enter_context(engine(spec.source).imported(gpu))
        module = importlib.import_module(f"ssd_aot.fuzzing.{spec.source}")
        code = getattr(module, LAUNCH_CODE[spec.source])()
        assert code is not None
        return fuzz(
            spec, code, [held],
            batches=batches, seed=seed, planned=planned, on_progress=ProgressPrinter(),
        )  # fmt: skip
