"""Fuzzing engines: their own operation on batches that a scheduler makes, against their plan.

`engine_modules` says where the operations come from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundle_builders import H200
from engine_modules import FIXTURE, importable, importable_engine
from fuzzing_builders import spec_of

from ssd_aot.engines.process import EngineProcess
from ssd_aot.engines.reaching import reached_signatures
from ssd_aot.errors import HostError
from ssd_aot.fuzzing import fuzzer
from ssd_aot.fuzzing.checking import Fuzzing, fuzz_plan
from ssd_aot.fuzzing.engines import fuzz_engine
from ssd_aot.fuzzing.fuzzer import FuzzReport, Held
from ssd_aot.fuzzing.misses import Miss, described
from ssd_aot.launches import Launch
from ssd_aot.plan import Plan
from ssd_aot.spec import Spec
from ssd_aot.targets import target

ENGINES = ("vllm", "sglang", "mamba_ssm", "tensorrt_llm")

SMALL = """\
version: 1
models: {small: {nheads: 16, headdim: 64, dstate: 64, ngroups: 1}}
max_num_seqs: 16
"""
ODD_ROWS = """\
version: 1
models: {odd: {nheads: 4, headdim: 64, dstate: 128, ngroups: 1, chunk_size: 64}}
max_num_seqs: 40
"""
"""A row of the projection has 772 elements: it is aligned every fourth token."""
TRACKED = SMALL + "matrix: {intermediate_states: [true]}\n"
WIDE = """\
version: 1
models: {wide: {nheads: 128, headdim: 64, dstate: 128, ngroups: 8}}
matrix: {num_seqs: [1], HAS_INITSTATES: [false]}
"""
"""From 115,000 tokens on a row's stride takes 64 bits."""
ROWS = """\
version: 1
models: {small: {nheads: 4, headdim: 64, dstate: 64, ngroups: 1}}
matrix: {IS_CONT_BATCHED: [false], num_seqs: [1, 2..8]}
"""
OPTIONS = ROWS.replace("2..8]", "2..8], z: [true], D: [none, headdim], seq_idx: [false, true]")


def planned(spec: Spec) -> tuple[Launch, ...]:
    with EngineProcess(spec.source, target("h200")) as process:
        traced = process.trace(reached_signatures(spec))
    return tuple(dict.fromkeys(found.captured.launch for found in traced))


def fuzzed(spec: Spec, launches: Iterable[Launch], batches: int) -> FuzzReport:
    return fuzz_engine(spec, [Held(H200, tuple(launches))], batches=batches, seed=0)


def of_engine(name: str, text: str, folder: Path) -> Spec:
    return replace(spec_of(text, folder), source=name)


PACKED_AS_ROWS = ("sglang", "tensorrt_llm", "mamba_ssm")
WHOLE = {
    "small": (ENGINES, SMALL),
    "odd rows": (PACKED_AS_ROWS, ODD_ROWS),
    "wide strides": (PACKED_AS_ROWS, WIDE),
    "states tracked": (("sglang",), TRACKED),
    "chunk-aligned lengths": (("sglang",), SMALL + "matrix: {lengths: [chunk_aligned]}\n"),
    "rows": (("mamba_ssm", "tensorrt_llm"), ROWS),
    "options": (("mamba_ssm",), OPTIONS),
}


@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for case, (names, _) in WHOLE.items() for name in names]
)
def test_an_engine_s_plan_holds_everything_that_its_batches_ask_for(
    name: str, case: str, tmp_path: Path
) -> None:
    spec = of_engine(name, WHOLE[case][1], tmp_path)

    with importable_engine(name, tmp_path):
        report = fuzzed(spec, planned(spec), 200)

    assert report.asked > 0
    assert not report.missing, [str(finding) for finding in report.findings()]


@pytest.mark.parametrize("name", PACKED_AS_ROWS)
def test_whichever_variant_is_removed_is_missed_and_shrunk(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzzer, "EXPLAINED", 1000)
    initial = "false" if name == "mamba_ssm" else "true"
    text = SMALL + f"matrix: {{num_seqs: [2..8], HAS_INITSTATES: [{initial}]}}\n"
    spec = of_engine(name, text, tmp_path)

    with importable_engine(name, tmp_path):
        launches = planned(spec)
        report = fuzzed(spec, (), 800)

    assert {miss.launch for miss in report.misses} == set(launches)
    assert min(miss.example.tokens for miss in report.misses) == 2
    assert not any(miss.example.decode_tokens for miss in report.misses)


def has(kernel: str, **constexprs: Any) -> Callable[[Launch], bool]:
    def matches(launch: Launch) -> bool:
        found = dict(launch.constexprs)
        return launch.kernel.endswith(f":{kernel}") and constexprs.items() <= found.items()

    return matches


PIECES = "_cu_seqlens_triton_kernel"
REMOVED = {
    "sglang": (
        has("_chunk_state_varlen_kernel", HAS_INITSTATES=False),
        "1 sequence of 2 tokens, without initial states",
    ),
    "tensorrt_llm": (has(PIECES), "2 sequences of 1 tokens each, with initial states"),
    "mamba_ssm": (has("_bmm_chunk_fwd_kernel"), "1 sequence of 1 token, without initial states"),
}


@pytest.mark.parametrize("name", REMOVED)
def test_a_removed_kernel_is_told_by_the_smallest_batches_that_ask_for_it(
    name: str, tmp_path: Path
) -> None:
    removed, smallest = REMOVED[name]
    spec = of_engine(name, SMALL, tmp_path)

    with importable_engine(name, tmp_path):
        left = tuple(launch for launch in planned(spec) if not removed(launch))
        misses = fuzzed(spec, left, 200).misses

    assert misses and all(removed(miss.launch) for miss in misses)
    assert any(told(miss).startswith(smallest) for miss in misses), list(map(told, misses))


def told(miss: Miss) -> str:
    return described(miss.example)


def test_a_kernel_compiled_anew_for_each_batch_is_not_asked_for(tmp_path: Path) -> None:
    """TensorRT-LLM 1.2 takes the counts of sequences and of pieces as constexprs."""
    modules = Path("tensorrt_llm", "_torch", "modules", "mamba")
    (tmp_path / "older" / modules).mkdir(parents=True)
    for module in (FIXTURE / modules).glob("*.py"):
        text = module.read_text().replace("_ptr, num_seqs,", "_ptr, num_seqs: tl.constexpr,")
        (tmp_path / "older" / modules / module.name).write_text(text)
    spec = of_engine("tensorrt_llm", SMALL, tmp_path)

    with importable("tensorrt_llm", tmp_path / "older", tmp_path):
        report = fuzzed(spec, (), 100)

    assert report.missing
    assert not any(has(PIECES)(miss.launch) for miss in report.misses)


@pytest.mark.parametrize("name", ["sglang", "tensorrt_llm"])
def test_a_deployment_that_an_engine_never_serves_is_not_drawn(name: str, tmp_path: Path) -> None:
    both = SMALL + "matrix: {num_seqs: [1], z: [false, true], dt_dtype: [same, fp32]}\n"
    spec = of_engine(name, both, tmp_path)

    with importable_engine(name, tmp_path):
        report = fuzzed(spec, (), 60)

    drawn = {miss.example.deployment for miss in report.misses}
    assert {(own.axes["z"], own.axes["dt_dtype"]) for own in drawn} == {(False, "bf16")}


def test_a_source_without_launch_code_is_told_which_ones_have_some(tmp_path: Path) -> None:
    spec = of_engine("recording", SMALL, tmp_path)

    with pytest.raises(HostError) as caught:
        fuzz_plan(spec, [], Plan((), (), ()), Fuzzing(1))

    assert caught.value.wanted == "builtin, vllm, sglang, mamba_ssm, tensorrt_llm"
