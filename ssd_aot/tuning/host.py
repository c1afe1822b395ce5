"""Tuning on the GPU here: candidates compiled anywhere, or what a build finds untuned.

What needs torch is imported where there is such a GPU: a build without one asks the driver alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ssd_aot.errors import SsdAotError
from ssd_aot.launches import Configuration, Launch
from ssd_aot.progress import Progress
from ssd_aot.runtime import driver
from ssd_aot.spec import Spec
from ssd_aot.targets import Target
from ssd_aot.tuning.choices import FOLDER, SOURCE, Chooser, RecordFile
from ssd_aot.tuning.record_text import read_record, write_record
from ssd_aot.tuning.records import Record, Session, merge

if TYPE_CHECKING:
    from ssd_aot.tuning.compiled_candidates import CompiledCandidates
    from ssd_aot.tuning.tuner import TuneReport


def is_here(target: Target) -> bool:
    """Whether the first GPU of this host is of that model; asks the driver alone."""
    try:
        found = driver.device(0)
    except SsdAotError:
        return False
    return target.is_device(found.name, found.capability)


def measure_candidates(
    candidates: CompiledCandidates,
    out: Path,
    *,
    budget_s: float | None = None,
    device: int = 0,
    on_progress: Callable[[Progress], None] | None = None,
) -> TuneReport:
    """Measure on the GPU of an index and write, or extend, the record at `out`.

    Raises `HostError` where that GPU is another model, or none.
    """
    from ssd_aot.tuning.device_measuring import DeviceMeasure, driver_version
    from ssd_aot.tuning.tuner import now, tune

    measure = DeviceMeasure(candidates.target, candidates.cubins, device)
    session = Session.of(
        candidates.toolchain, date=now(), device=measure.name, driver=driver_version()
    )
    return tune(candidates, measure, session, out, budget_s=budget_s, on_progress=on_progress)


def tune_missing(
    spec: Spec,
    target: Target,
    records: Sequence[RecordFile],
    *,
    jobs: int,
    folder: Path = FOLDER,
    on_progress: Callable[[Progress], None] | None = None,
) -> TuneReport | None:
    """Measure the launches of a spec that no record has measured for this GPU, the one here, into
    `folder`; None when there are none. What records know already is carried over."""
    from ssd_aot.plan import make_plan
    from ssd_aot.sources.builtin import kernel_sources
    from ssd_aot.triton_compat import toolchain
    from ssd_aot.tuning.candidate_compiling import compile_candidates

    # As in `tune`, pins are passed over: only whether there is anything to measure is theirs.
    plan = make_plan(replace(spec, pin=()), [target])
    chooser = Chooser(tuple(records), toolchain(), kernel_sources())
    settled: dict[Launch, Configuration] = {}
    for planned in plan.launches:
        choice = chooser.choose(planned.launch, target, planned.candidates)
        if choice.tuning.status == "measured":
            settled[planned.launch] = choice.configuration
    open_kernels = {p.launch.kernel for p in plan.launches if p.launch not in settled}
    if all(spec.pinned(kernel) for kernel in open_kernels):
        return None
    out = folder / f"{target.name}.{SOURCE}.json"
    known = read_record(out) if out.exists() else Record(target.name, SOURCE)
    for file in records:
        if file.record.name == known.name:
            known = merge(known, file.record)
    write_record(out, known)
    candidates = compile_candidates(
        plan.signatures, plan.launches, target, out, jobs=jobs, settled=settled,
        on_progress=on_progress,
    )  # fmt: skip
    return measure_candidates(candidates, out, on_progress=on_progress)
