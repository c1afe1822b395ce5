"""Candidates for tests on a real GPU: those that SSD_AOT_TEST_CANDIDATES names, or a few."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import torch
from signature_builders import signature

from ssd_aot.launches import Launch
from ssd_aot.plan import PlannedLaunch
from ssd_aot.targets import Target, target_for_device
from ssd_aot.tuning.compiled_candidates import CandidateLaunch, CompiledCandidates
from ssd_aot.tuning.groups import calls_of

MOST = 3
SIGNATURES = [
    signature(model="m", nheads=heads, tp=128 // heads, num_seqs=(1, 64), has_initstates=has)
    for heads in (128, 16)
    for has in (False, True)
]


def given_candidates() -> CompiledCandidates | None:
    """All that `tune --compile-only` wrote, where it is named."""
    given = os.environ.get("SSD_AOT_TEST_CANDIDATES")
    return CompiledCandidates.read(Path(given)) if given else None


def few_candidates(place: Path) -> CompiledCandidates:
    """The launches of one geometry with the first candidates of each, compiled beside `place`
    unless they are given."""
    whole = given_candidates()
    if whole is None:
        return _compiled(place)
    wanted = {launch for call in calls_of(SIGNATURES) for launch in call.launches}
    launches = [_cut(e) for e in whole.launches if e.planned.launch in wanted]
    needed = {name for entry in launches for name in entry.planned.signatures}
    signatures = tuple(s for s in whole.signatures if s.id in needed and s.headdim == 64)
    return replace(whole, launches=tuple(launches), signatures=signatures)


def target_here() -> Target:
    gpu = target_for_device(torch.cuda.get_device_name(), torch.cuda.get_device_capability())
    assert gpu is not None, "this GPU is not among the targets"
    return gpu


def _cut(entry: CandidateLaunch) -> CandidateLaunch:
    planned = replace(entry.planned, candidates=entry.planned.candidates[:MOST])
    return CandidateLaunch(planned, entry.compiled[:MOST])


def _compiled(place: Path) -> CompiledCandidates:
    from ssd_aot.candidates import candidates as offered
    from ssd_aot.tuning.candidate_compiling import compile_candidates

    gpu = target_here()
    needing: dict[Launch, list[str]] = {}
    for call in calls_of(SIGNATURES):
        for launch in call.launches:
            needing.setdefault(launch, []).append(call.signature.id)
    planned = [
        PlannedLaunch(launch, gpu, offered(launch, gpu)[:MOST], tuple(dict.fromkeys(ids)))
        for launch, ids in needing.items()
    ]
    return compile_candidates(SIGNATURES, planned, gpu, place, jobs=os.cpu_count() or 2)
