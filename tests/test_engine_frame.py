"""What the frame captures of launch code in the styles that engines have."""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fixture_engine.engine import launched
from spec_builders import SMALL, write_spec

from ssd_aot.engines.chunked_batches import of_each_class
from ssd_aot.engines.engine import engine
from ssd_aot.engines.operation_modules import operation_module, pass_over, require_kernel
from ssd_aot.engines.presenting import presented
from ssd_aot.engines.reaching import left_out, reached_signatures
from ssd_aot.errors import HostError, SpecError, UsageError
from ssd_aot.spec import Spec, load_spec
from ssd_aot.targets import target
from ssd_aot.triton_compat import CapturedLaunch


def classes(launches: list[CapturedLaunch], argument: str) -> list[str]:
    return sorted(
        found.spelled()
        for launch in launches
        for found in launch.launch.arguments
        if found.name == argument
    )


def test_strides_of_16_1_and_17_are_three_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    """C03: and the printed key shows the class of each."""
    launches = launched(monkeypatch, lambda op: [op.run_strided(n) for n in (16, 1, 17, 33)])
    assert classes(launches, "stride") == ["i32 %16", "i32 ==1", "i32 other"]
    assert sorted(str(launch.launch).rpartition("stride: ")[2] for launch in launches) == [
        "i32 %16)",
        "i32 ==1)",
        "i32 other)",
    ]


@pytest.mark.parametrize(
    "low, high, wanted",
    [(1, 64, ["i32 %16", "i32 ==1", "i32 other"]), (2, 15, ["i32 other"]), (16, 16, ["i32 %16"])],
)
def test_a_range_of_counts_has_exactly_its_classes(
    monkeypatch: pytest.MonkeyPatch, low: int, high: int, wanted: list[str]
) -> None:
    """C04."""
    few = launched(monkeypatch, lambda op: [op.run_strided(n) for n in of_each_class(low, high)])
    every = launched(monkeypatch, lambda op: [op.run_strided(n) for n in range(low, high + 1)])
    assert classes(few, "stride") == wanted
    assert few == every


def test_three_pointers_sliced_independently_have_eight_alignments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C05."""
    launches = launched(
        monkeypatch, lambda op: [op.run_added(at) for at in product(range(0, 16, 4), repeat=3)]
    )
    found = {
        tuple(a.specialisation for a in launch.launch.arguments if a.type == "*bf16")
        for launch in launches
    }
    assert found == set(product(("aligned", "unaligned"), repeat=3))
    assert len(launches) == 8


def test_an_argument_that_is_none_and_a_dtype_are_part_of_the_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def calls(op: Any) -> None:
        op.run_added((0, 0, 0))
        op.run_added((0, 0, 0), bias=op.meta(16), dtype=op.tl.bfloat16)

    launches = launched(monkeypatch, calls)
    assert classes(launches, "bias_ptr") == ["*bf16 aligned", "none"]
    assert {dict(launch.launch.constexprs)["DTYPE"] for launch in launches} == {
        "tl.fp32",
        "tl.bf16",
    }


def test_counts_that_are_not_specialised_share_a_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = launched(monkeypatch, lambda op: [op.run_unspecialised(n) for n in (1, 16, 17)])
    assert len(launches) == 1


def test_what_a_heuristic_derives_is_part_of_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    launches = launched(monkeypatch, lambda op: [op.run_by_heuristic(n) for n in (32, 64)])
    assert [dict(launch.launch.constexprs)["EVEN"] for launch in launches] == [False, True]


def test_candidates_are_those_left_for_the_arguments_of_the_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One kernel, two sizes: two tunings, each with candidates and a key of its own."""
    launches = launched(monkeypatch, lambda op: [op.run_pruned(n) for n in (32, 64, 32)])
    assert len(launches) == 2
    assert len({launch.launch for launch in launches}) == 1
    blocks = {
        json.loads(launch.tuning.tuning_key)[0]: [
            dict(candidate.configuration.constexprs)["BLOCK"] for candidate in launch.candidates
        ]
        for launch in launches
        if launch.tuning
    }
    assert blocks == {32: [16, 32], 64: [16, 32, 64]}
    assert len({launch.tuning.key for launch in launches if launch.tuning}) == 2


def test_a_launch_past_the_tuner_has_the_tuners_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = launched(monkeypatch, lambda op: op.run_chosen(64))
    past = launched(monkeypatch, lambda op: [op.run_chosen(64), op.run_chosen(64)])
    assert past == tuned
    assert len(tuned[0].candidates) == 3


def test_launch_code_that_launches_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(HostError, match="launched no kernel"):
        launched(monkeypatch, lambda op: None)


def test_signatures_that_the_engine_never_calls_with_fall_away_with_a_notice(
    tmp_path: Path,
) -> None:
    spec = spec_of(tmp_path, "[true, false]")

    kept = reached_signatures(spec)

    assert kept and all(signature.is_cont_batched for signature in kept)
    assert left_out(spec) == (
        f"{len(kept)} of {2 * len(kept)} signatures are left out: "
        "vLLM calls with packed sequences alone (IS_CONT_BATCHED true)",
    )


def test_a_spec_of_which_the_engine_has_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="vllm has no such calls"):
        reached_signatures(spec_of(tmp_path, "[false]"))


def spec_of(folder: Path, is_cont_batched: str) -> Spec:
    matrix = f"source: vllm\nmatrix: {{IS_CONT_BATCHED: {is_cont_batched}}}\n"
    return load_spec([write_spec(folder, SMALL + matrix)])


def test_kernels_that_became_plain_functions_are_refused() -> None:
    module = SimpleNamespace(__name__="an.engine", kernel=len)
    with pytest.raises(HostError, match="placeholders"):
        require_kernel(module, "kernel")


def test_an_engine_that_is_not_known_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError) as caught:
        engine("sglan")
    assert "sglang" in caught.value.mend


def test_packages_that_are_passed_over_are_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = tmp_path / "loud_engine" / "ops"
    inner.mkdir(parents=True)
    (tmp_path / "loud_engine" / "__init__.py").write_text("raise OSError('no driver here')")
    (inner / "__init__.py").write_text("")
    (inner / "scan.py").write_text("answer = 42")
    monkeypatch.syspath_prepend(tmp_path)
    pass_over(("loud_engine",))
    try:
        assert operation_module("loud_engine.ops.scan").answer == 42
        with pytest.raises(HostError, match="no such package"):
            pass_over(("loud_engine", "loud_engine.nothing"))
        with pytest.raises(HostError, match="cannot be imported"):
            operation_module("loud_engine.ops.nothing")
    finally:
        for name in [n for n in sys.modules if n.startswith("loud_engine")]:
            del sys.modules[name]


def test_the_gpu_that_is_presented_is_gone_afterwards() -> None:
    import torch

    before = torch.cuda.get_device_capability
    with presented(target("b200")):
        assert torch.cuda.get_device_capability() == (10, 0)
        assert torch.cuda.get_device_name() == "NVIDIA B200"
    assert torch.cuda.get_device_capability is before
