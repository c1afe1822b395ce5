"""The configurations that a launch may be compiled with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from signature_builders import signature

from ssd_aot.candidates import NARROWEST, candidates
from ssd_aot.compilation.build_cache import BuildCache
from ssd_aot.compilation.compiling import CompileTask, compile_all
from ssd_aot.launches import Launch, Variant
from ssd_aot.layouts import FormRule
from ssd_aot.signatures import Signature
from ssd_aot.sources.builtin import enumerate_launches, kernel_reference
from ssd_aot.targets import TARGETS, Target, target

RULE = FormRule.for_gpu(132)
NARROW = signature(nheads=4, ngroups=1, headdim=16, dstate=16)
WIDE = replace(NARROW, headdim=128, dstate=256)


def launches(*signatures: Signature) -> list[Launch]:
    return [launch for one in signatures for launch in enumerate_launches(one, RULE)]


@pytest.mark.parametrize("gpu", TARGETS, ids=lambda gpu: gpu.name)
def test_candidates_differ_and_come_in_one_order(gpu: Target) -> None:
    for launch in launches(NARROW, WIDE):
        found = candidates(launch, gpu)
        assert len(found) == len(set(found)) > 1
        assert found == candidates(launch, gpu)


def test_no_block_is_narrower_than_what_was_found_to_compile_rightly() -> None:
    for gpu in TARGETS:
        for launch in launches(NARROW):
            for configuration in candidates(launch, gpu):
                chosen = dict(configuration.constexprs)
                for name in ("BLOCK_P", "BLOCK_N"):
                    assert int(chosen.get(name) or NARROWEST) >= NARROWEST


@pytest.mark.parametrize("name", ["b200", "b300", "a100", "rtx-4090", "rtx-5090"])
def test_where_nothing_was_measured_the_cautious_choice_comes_first(name: str) -> None:
    """A single stage and no prefetch: Triton's known miscompilations lie in pipelined dots."""
    for launch in launches(NARROW, WIDE):
        if launch.kernel in ("scan", "segment_states"):
            first = candidates(launch, target(name))[0]
            assert first.num_stages == 1
            assert dict(first.constexprs).get("PREFETCH", False) is False


def test_some_of_each_kernels_candidates_compile(tmp_path: Path) -> None:
    """All of them are compiled when a GPU is tuned for; here the first and the last."""
    h200 = target("h200")
    first_of = {launch.kernel: launch for launch in launches(NARROW)}
    tasks = [
        CompileTask(
            kernel_reference(launch.kernel, configuration), Variant(launch, configuration), h200
        )
        for launch in first_of.values()
        for configuration in {candidates(launch, h200)[0], candidates(launch, h200)[-1]}
    ]

    with BuildCache(tmp_path / "cache") as cache:
        result = compile_all(tasks, jobs=2, cache=cache)

    assert not result.failures
    assert not result.unfit
    assert len(result.compiled) == len(tasks) == 8
