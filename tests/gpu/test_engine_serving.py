"""Engines' own kernels from bundles that were built elsewhere, against the engines by themselves.

`SSD_AOT_TEST_ENGINE_BUNDLE` names bundles, with `:` between them, that were built with this host's
Triton and Python, without a GPU; the engines, or their operation modules, can be imported.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ssd_aot.bundle.store import Bundle

WORKER = Path(__file__).parent / "engine_worker.py"

pytestmark = pytest.mark.gpu


@pytest.fixture(
    scope="module", params=os.environ.get("SSD_AOT_TEST_ENGINE_BUNDLE", "").split(os.pathsep)
)
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle, moved and read-only."""
    if not request.param:
        pytest.skip("SSD_AOT_TEST_ENGINE_BUNDLE names no bundle of an engine's kernels")
    moved = tmp_path_factory.mktemp("moved") / "bundle"
    shutil.copytree(request.param, moved)
    for path in [moved, *moved.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    return moved


def run(bundle: Path, mode: str, workload: str, cache: Path, *, path: str = "") -> dict[str, Any]:
    environment = {**os.environ, "TRITON_CACHE_DIR": str(cache)}
    if mode != "own":
        # No C compiler, nor the program `file`.
        environment["PATH"] = path or "/nonexistent"
    ended = subprocess.run(
        [sys.executable, str(WORKER), str(bundle), mode, workload],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-4000:]
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    print(mode, workload, {name: value for name, value in found.items() if name != "results"})
    return found


@pytest.fixture(scope="module")
def served(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What a process found over all signatures: by itself, and from the bundle."""
    place = tmp_path_factory.mktemp("caches")
    modes = ("own", "early", "cold", "warm")
    return {mode: run(bundle, mode, "signatures", place / mode) for mode in modes}


def test_nothing_is_compiled_tuned_or_built_and_the_bits_are_the_engines_own(
    served: dict[str, dict[str, Any]],
) -> None:
    own = served["own"]
    for mode in ("early", "cold", "warm"):
        found = served[mode]
        assert (found["compiled"], found["tuned"], found["built"]) == (0, 0, 0)
        assert found["results"] == own["results"]
    assert own["compiled"] > 0
    assert own["error"] <= 1


def test_the_first_call_waits_for_modules_to_load_and_for_little_else(
    bundle: Path, served: dict[str, dict[str, Any]]
) -> None:
    """The others launch more kernels, by tuners that prune, and rearrange by einops."""
    of_vllm = Bundle.open(bundle).manifest.source.name == "vllm"
    assert served["cold"]["first_ms"] <= (10 if of_vllm else 20)


def test_the_first_call_after_a_warm_load_is_like_one_after_a_wait(
    served: dict[str, dict[str, Any]],
) -> None:
    """Two milliseconds of waiting for the device leave the engine's and Triton's code cold."""
    assert served["warm"]["first_ms"] <= 2 * served["warm"]["after_waits_ms"]


def test_processes_take_equal_time_with_the_bundle(bundle: Path, tmp_path: Path) -> None:
    """TensorRT-LLM's measure of what warm-ups miss: 13.9 % without, 1.25 % wanted."""
    seconds = [run(bundle, "warm", "batches", tmp_path / "warm")["seconds"] for _ in range(3)]

    print(f"with the bundle {_variation(seconds):.2%}", seconds)
    assert _variation(seconds) <= 0.0125


def test_what_processes_take_by_themselves(bundle: Path, tmp_path: Path) -> None:
    """Minutes: each compiles anew. Shows what the bundle saves, and holds nothing."""
    seconds = [run(bundle, "own", "batches", tmp_path / f"own{i}")["seconds"] for i in range(3)]

    print(f"without {_variation(seconds):.2%}", seconds)


def _variation(seconds: list[float]) -> float:
    return statistics.stdev(seconds) / statistics.mean(seconds)
