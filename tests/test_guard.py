"""The guard: what Triton compiles or tunes beside a bundle is told once, in full, or an error."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_bundles import EVEN, ONE_MODEL, build
from forked import forked
from test_serving_triton import Served, load, serving_process
from triton import knobs
from triton.runtime.autotuner import Autotuner, Config

import ssd_aot as package
from ssd_aot.errors import MissingLaunchError
from ssd_aot.runtime.asked import Asked
from ssd_aot.triton_compat.in_progress import compilation_in_progress

OPERATION = "fixture_engine.operation"


@contextmanager
def told() -> Iterator[list[str]]:
    """The lines of the guard."""
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    handler = Kept()
    logging.getLogger("ssd_aot").addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger("ssd_aot").removeHandler(handler)


def told_of(
    bundle: Path, calls: Callable[[Served], object], **options: Any
) -> tuple[list[str], dict[str, Any], list[str], str]:
    """The guard's lines, the status, the compilations and the error of a process of its own."""
    with serving_process() as served, told() as lines:
        load(bundle, **options)
        error = ""
        try:
            calls(served)
        except MissingLaunchError as caught:
            error = str(caught)
        return lines, package.status(), served.compilations, error


def stride_of_1(served: Served) -> None:
    served.op.run_strided(1)


def test_a_compilation_is_told_once_with_its_key_and_the_nearest_launch(
    engine_bundle: Path, tmp_path: Path
) -> None:
    def calls(served: Served) -> None:
        for _ in range(2):
            stride_of_1(served)

    lines, status, compiled, error = forked(
        told_of, engine_bundle, calls, TRITON_CACHE_DIR=str(tmp_path)
    )

    (line,) = lines
    asked = Asked.from_line(line, "line")
    assert (asked.kind, asked.kernel) == ("compilation", f"{OPERATION}:strided")
    assert asked.launch is not None
    assert [a.spelled() for a in asked.launch.arguments] == ["*bf16 aligned", "i32 ==1"]
    assert "argument class stride i32 ==1, not i32 %16" in asked.nearest
    assert len(asked.key) == 64
    assert status["misses"] == {"strided.json": 1}
    assert (compiled, error) == (["strided"], "")


def test_what_triton_finds_in_its_own_cache_is_no_miss(engine_bundle: Path, tmp_path: Path) -> None:
    for expected in (1, 0):
        lines, status, compiled, _ = forked(
            told_of, engine_bundle, stride_of_1, TRITON_CACHE_DIR=str(tmp_path)
        )
        assert (len(lines), len(status["misses"]), len(compiled)) == (expected,) * 3


def test_without_logging_set_up_the_line_is_on_stderr(engine_bundle: Path, tmp_path: Path) -> None:
    def work() -> str:
        logging.lastResort = logging.StreamHandler(said := io.StringIO())
        logging.getLogger().handlers.clear()
        with serving_process() as served:
            load(engine_bundle)
            stride_of_1(served)
        return said.getvalue()

    assert Asked.from_line(forked(work, TRITON_CACHE_DIR=str(tmp_path)), "stderr").kernel


@pytest.mark.parametrize("by_environment", [False, True])
def test_strict_mode_raises_and_compiles_nothing(
    by_environment: bool, engine_bundle: Path, tmp_path: Path
) -> None:
    def work() -> Any:
        return told_of(engine_bundle, stride_of_1, strict=not by_environment)

    lines, _, compiled, error = forked(
        work, TRITON_CACHE_DIR=str(tmp_path), SSD_AOT_STRICT="1" if by_environment else None
    )

    assert compiled == []
    assert len(lines) == 1
    assert f"{OPERATION}:strided: Triton would begin a compilation" in error
    assert "argument class stride i32 ==1, not i32 %16" in error


def scan_with_states(op: Any, state_dtype: torch.dtype) -> None:
    """Bfloat16 inputs, with and without initial states."""
    for states in (None, op.meta(16, dtype=state_dtype)):
        op.added[(1,)](op.meta(16), op.meta(16), op.meta(16), states, DTYPE=op.tl.float32)
        op.run_pruned(EVEN.nheads)


def test_covered_states_compile_nothing_and_others_are_told_by_their_dtype(tmp_path: Path) -> None:
    """C01: in a fresh process; the state cache in float32, then in float16."""
    build(
        tmp_path / "b", ONE_MODEL, calls=lambda op, signature: scan_with_states(op, torch.float32)
    )

    def covered(served: Served) -> None:
        scan_with_states(served.op, torch.float32)

    def other(served: Served) -> None:
        scan_with_states(served.op, torch.float16)

    def work(calls: Callable[[Served], object]) -> Any:
        return told_of(tmp_path / "b", calls, strict=True)

    lines, status, compiled, error = forked(work, covered, TRITON_CACHE_DIR=str(tmp_path / "c"))
    assert (lines, status["misses"], compiled, error) == ([], {}, [], "")
    lines, _, compiled, error = forked(work, other, TRITON_CACHE_DIR=str(tmp_path / "c"))
    assert compiled == []
    assert "argument type bias_ptr *fp16 aligned, not *fp32 aligned" in error


def test_a_candidate_more_changes_the_tuning_key_and_no_old_winner_is_used(
    engine_bundle: Path,
) -> None:
    """C33: the engine's new version adds one candidate configuration."""

    def one_more(served: Served) -> None:
        served.op.pruned.configs.append(Config({"BLOCK": 8}, num_warps=1))
        served.op.run_pruned(EVEN.nheads)

    def work() -> Any:
        return told_of(engine_bundle, one_more, strict=True)

    lines, _, _, error = forked(work)

    asked = Asked.from_line(lines[0], "line")
    assert asked.kind == "tuning"
    assert f"tuning key changed for kernel {OPERATION}:pruned" in error
    assert "candidates 3, with BLOCK=8 num_ctas=1 num_stages=3 num_warps=1, not 2" in error


def test_another_size_is_told_by_the_tuning_key(engine_bundle: Path) -> None:
    def work() -> Any:
        return told_of(engine_bundle, lambda served: served.op.run_pruned(48), strict=True)

    lines, _, _, error = forked(work)

    asked = Asked.from_line(lines[0], "line")
    assert asked.tuning_key is not None and asked.tuning_key[0] == 48
    assert "tuning key [48, " in error


def measured_at_once(tuner: Any) -> list[str]:
    """Makes the tuner's measurements end at once; the candidates that were measured."""
    seen: list[str] = []

    def bench(call: Callable[[], object], quantiles: object) -> list[float]:
        call()
        seen.append("measured")
        return [1.0, 1.0, 1.0]

    tuner._do_bench = bench
    return seen


@pytest.mark.parametrize("strict", [False, True])
def test_a_tuning_that_looks_nothing_up_is_told_too(strict: bool, tmp_path: Path) -> None:
    """C57: a candidate with a pre_hook, whose result Triton cannot store."""
    build(tmp_path / "b", ONE_MODEL, calls=lambda op, signature: op.run_hooked())

    def hooked(served: Served) -> None:
        seen = measured_at_once(served.op.hooked)
        served.op.run_hooked()
        served.op.run_hooked()
        assert len(seen) == 2

    def work() -> Any:
        return told_of(tmp_path / "b", hooked, strict=strict)

    lines, status, compiled, error = forked(work, TRITON_CACHE_DIR=str(tmp_path / "c"))

    (line,) = lines
    assert "pre_hook" in Asked.from_line(line, "line").nearest
    assert status["misses"] == {f"{OPERATION}:hooked.autotune.json": 1}
    assert compiled == []
    assert ("pre_hook" in error) == strict


def test_an_engines_own_hooks_stay_and_hear_what_they_heard(
    engine_bundle: Path, tmp_path: Path
) -> None:
    def work() -> Any:
        heard: list[str] = []

        def cache_hook(**given: Any) -> bool:
            heard.append(f"looks up {given['fn'].name}")
            return False

        def compiled_hook(**given: Any) -> None:
            heard.append(f"has {given['fn'].name}")

        with serving_process() as served:
            listener = knobs.compilation.listener
            knobs.runtime.jit_cache_hook = cache_hook
            load(engine_bundle)
            knobs.runtime.jit_post_compile_hook = compiled_hook
            stride_of_1(served)
            same = (knobs.runtime.jit_cache_hook, knobs.compilation.listener)
            assert same == (cache_hook, listener)
            return heard, served.compilations

    heard, compiled = forked(work, TRITON_CACHE_DIR=str(tmp_path))
    assert heard == ["looks up strided", "has strided"]
    assert compiled == ["strided"]


def test_nothing_of_the_guard_is_on_the_path_of_a_launch(engine_bundle: Path) -> None:
    """A second launch runs through the same functions as without a guard."""
    from triton.runtime.jit import JITFunction

    def work() -> Any:
        run, compile_ = JITFunction.run, JITFunction._do_compile
        with serving_process() as served:
            load(engine_bundle)
            served(EVEN)
            assert knobs.runtime.jit_cache_hook is None
            return (JITFunction.run, JITFunction._do_compile) == (run, compile_)

    assert forked(work)


def test_loading_twice_watches_once(engine_bundle: Path) -> None:
    def work() -> bool:
        with serving_process():
            load(engine_bundle)
            measure = Autotuner._bench
            load(engine_bundle)
            return Autotuner._bench is measure

    assert forked(work)


def test_outside_of_a_launch_nothing_is_in_progress() -> None:
    assert compilation_in_progress() is None


def test_a_line_is_read_back_whatever_a_logger_put_before_it() -> None:
    asked = Asked("tuning", "m:f", "a" * 64, tuning_key=(1, "torch.bfloat16"), arch=90)
    line = f"WARNING 2026-01-01 ssd_aot: {asked.line()}\n"
    assert Asked.from_line(line, "line") == Asked(
        **{**vars(asked), "tuning_key": (1, "torch.bfloat16")}
    )
    assert json.loads(asked.line())["ssd_aot"] == "miss"
