"""A recording's launches on a target, as a trace: no engine is asked, its kernels are imported."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ssd_aot.bundle.manifest import Tuning
from ssd_aot.engines.groups import TuningGroup
from ssd_aot.engines.presenting import presented
from ssd_aot.engines.tracing import TracedLaunch
from ssd_aot.errors import BuildError, HostError, listed
from ssd_aot.launches import Configuration, Variant
from ssd_aot.recording.reading import check_recording
from ssd_aot.recording.recorded import (
    RecordedKernel,
    RecordedLaunch,
    RecordedTuning,
    Recording,
    config_of,
)
from ssd_aot.targets import Target
from ssd_aot.triton_compat import CapturedCandidate, CapturedLaunch, TuningResult, kernel_function
from ssd_aot.triton_compat.kernel import look_for_programs_in, refuse_changed_source
from ssd_aot.triton_compat.recorded_keys import entry_key, launch_key, tuning_result
from ssd_aot.tuning.choices import Choice


def trace_recording(recording: Recording, target: Target) -> tuple[TracedLaunch, ...]:
    """Every recorded launch on `target`, the recorded winner first among its candidates; for a
    process of its own.

    Raises HostError for kernels that are not here, BuildError for those with another source, all by
    name.
    """
    look_for_programs_in((*recording.folders, Path.cwd()))
    with presented(target):
        _check_sources(recording)
        tunings = check_recording(recording)
        results = {place: _result(tuning) for place, tuning in tunings.items()}
        kernels = dict(recording.kernels)
        found = [
            _captured(
                one,
                target,
                tunings.get((one.launch.kernel, one.tuning)),
                results.get((one.launch.kernel, one.tuning)),
                kernels[one.launch.kernel],
            )
            for one in recording.launches
        ]
    ordered = sorted(found, key=lambda captured: str(captured.launch))
    return tuple(TracedLaunch(captured, ()) for captured in ordered)


def _check_sources(recording: Recording) -> None:
    absent: list[BuildError] = []
    changed: list[BuildError] = []
    for name, kernel in recording.kernels:
        try:
            function = kernel_function(name)
        except BuildError as error:
            absent.append(error)
            continue
        try:
            refuse_changed_source(function, name, kernel.source_sha256, kernel.text)
        except BuildError as error:
            changed.append(error)
    if absent:
        raise HostError(
            f"{len(absent)} of {len(recording.kernels)} recorded kernels are not here",
            where="recording",
            found=_named(absent),
            wanted="the program's modules, importable where the bundle is built",
            mend="build in the program's own environment; its file may lie beside the recording or "
            "in the current folder",
        )
    if changed:
        raise BuildError(
            f"{len(changed)} kernels have another source than was recorded",
            where="recording",
            found=_named(changed),
            wanted="the sources that were recorded",
            mend="record the program again as it is now, or install what was recorded",
        )


def _named(errors: Sequence[BuildError]) -> str:
    return listed([f"{error.where}: {error.found}" for error in errors])


def _result(tuning: RecordedTuning) -> TuningResult:
    if tuning.reason:
        return TuningResult(reason=tuning.reason)
    return tuning_result(
        kernel_function(tuning.kernel), tuning.values, [config_of(c) for c in tuning.offered]
    )


def _captured(
    one: RecordedLaunch,
    target: Target,
    tuning: RecordedTuning | None,
    result: TuningResult | None,
    kernel: RecordedKernel,
) -> CapturedLaunch:
    winner = tuning.winner if tuning else None
    candidates = [
        _candidate(one, configuration, target, tuning.offered[at] if tuning else "")
        for at, configuration in sorted(one.candidates, key=lambda pair: (pair[0] != winner, pair))
    ]
    return CapturedLaunch(one.launch, kernel.source_sha256, tuple(candidates), result, kernel.text)


def _candidate(
    one: RecordedLaunch, configuration: Configuration, target: Target, offered: str
) -> CapturedCandidate:
    function = kernel_function(one.launch.kernel)
    variant = Variant(one.launch, configuration)
    config = config_of(offered) if offered else None
    spelled = json.dumps(config | {"pre_hook": None}, sort_keys=True) if config else ""
    return CapturedCandidate(
        configuration,
        entry_key(function, variant, target),
        spelled,
        launch_key(function, variant, one.given, config),
    )


def as_recorded(
    choices: Mapping[TuningGroup, Sequence[Choice]], recording: Recording, target: Target
) -> dict[TuningGroup, tuple[Choice, ...]]:
    """The choices, with those that are nothing but the recorded winners marked so: `recorded` on a
    GPU that was recorded, else `borrowed`; no reference has checked either."""
    winners = {
        (one.kernel, json.dumps(one.values)): one.offered[one.winner]
        for one in recording.tunings
        if one.winner is not None
    }
    here = target.name in recording.recorded_on
    other = ", ".join(recording.recorded_on) or "a recording"
    won = Tuning("recorded" if here else f"borrowed from {other}")
    marked = {}
    for group, (first, *rest) in choices.items():
        tuning = group.tuning
        winner = winners.get((group.kernel, tuning.tuning_key)) if tuning else None
        spelled = next(
            candidate.spelled
            for candidate in group.launches[0].captured.candidates
            if candidate.configuration == first.configuration
        )
        if winner is not None and first.tuning.status == "default" and _same(winner, spelled):
            first = replace(first, tuning=won)
        marked[group] = (first, *rest)
    return marked


def _same(offered: str, spelled: str) -> bool:
    return bool(spelled) and config_of(offered) | {"pre_hook": None} == json.loads(spelled)
