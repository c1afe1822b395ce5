"""Tuning on the GPUs of a crew: candidates compiled anywhere, or what a build finds untuned.

What needs torch is imported where there is such a GPU: a build without one asks the driver alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from ssd_aot.compilation.crews import Crew
from ssd_aot.compilation.spawning import SpawnedWorker
from ssd_aot.errors import SsdAotError
from ssd_aot.launches import Configuration, Launch
from ssd_aot.progress import Progress
from ssd_aot.runtime import driver
from ssd_aot.spec import Spec
from ssd_aot.targets import Target
from ssd_aot.tuning.choices import FOLDER, SOURCE, Chooser, RecordFile
from ssd_aot.tuning.record_text import read_record, write_record
from ssd_aot.tuning.records import Record, merge

if TYPE_CHECKING:
    from ssd_aot.tuning.compiled_candidates import CompiledCandidates
    from ssd_aot.tuning.remote_station import RemoteStation
    from ssd_aot.tuning.station_host import OpenDevice
    from ssd_aot.tuning.tuner import TuneReport


def gpus_here(target: Target) -> tuple[int, ...]:
    """The CUDA indices of this host's GPUs of that model; asks the driver alone."""
    found: list[int] = []
    for index in count():
        try:
            device = driver.device(index)
        except SsdAotError:
            return tuple(found)
        if target.is_device(device.name, device.capability):
            found.append(index)
    raise AssertionError("the indices never end")


def process_stations(
    candidates: CompiledCandidates, devices: Sequence[int], open_device: OpenDevice, date: str
) -> list[RemoteStation]:
    """A process of this host for each of the devices."""
    from ssd_aot.tuning.remote_station import Opening, RemoteStation

    return [
        RemoteStation(
            f"GPU {index}",
            partial(SpawnedWorker, f"GPU {index}"),
            Opening(candidates.target, index, open_device),
            candidates.cubins,
            candidates.toolchain,
            date,
        )
        for index in devices
    ]


def measure_candidates(
    candidates: CompiledCandidates,
    out: Path,
    crew: Crew,
    *,
    budget_s: float | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_notice: Callable[[str], None] | None = None,
) -> TuneReport:
    """Measure on the crew's GPUs and write, or extend, the record at `out`.

    Raises `HostError` where it has no GPU of the candidates' model.
    """
    from ssd_aot.tuning.tuner import now, tune_on

    date = now()
    stations = crew.stations(candidates, date)
    return tune_on(
        stations, candidates, out, date=date, budget_s=budget_s, on_progress=on_progress,
        on_notice=on_notice,
    )  # fmt: skip


def tune_missing(
    spec: Spec,
    target: Target,
    records: Sequence[RecordFile],
    crew: Crew,
    *,
    folder: Path = FOLDER,
    on_progress: Callable[[Progress], None] | None = None,
    on_notice: Callable[[str], None] | None = None,
) -> TuneReport | None:
    """Measure the launches of a spec that no record has measured for this GPU, one of the crew's,
    into `folder`; None when there are none. What records know already is carried over."""
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
        plan.signatures, plan.launches, target, out, jobs=crew.jobs,
        executor=crew.executor, settled=settled, on_progress=on_progress,
    )  # fmt: skip
    return measure_candidates(candidates, out, crew, on_progress=on_progress, on_notice=on_notice)
