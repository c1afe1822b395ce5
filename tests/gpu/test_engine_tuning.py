"""Engines' own kernels tuned on a real GPU, and bundles built from the records, served.

Of the engines those run that can be imported, whole or as their operation modules with a
distribution's metadata beside them.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from command_line import ROOT, command

from ssd_aot.bundle.store import Bundle
from ssd_aot.measurement.running import TOLERANCE
from ssd_aot.targets import Target, target_for_device
from ssd_aot.tuning.record_text import read_record

WORKER = Path(__file__).parent / "engine_worker.py"
SMALL = """\
version: 1
source: {engine}
models:
  small: {{nheads: 16, headdim: 64, dstate: 128, ngroups: 1, chunk_size: 128}}
matrix: {{HAS_INITSTATES: [true], num_seqs: [many], IS_CONT_BATCHED: [{packed}]}}
"""
"""One signature: for vLLM six tuning keys with 53 candidates."""

PACKED = {"vllm": "true", "sglang": "true", "mamba_ssm": "false"}
"""Whether an engine packs sequences that have initial states."""

BUDGET = "45s"
"""For measuring; all of it with what comes before and after within two minutes."""


@pytest.fixture(scope="module", params=PACKED)
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name}'s modules cannot be imported")
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"no metadata of {name} beside its modules")
    return name


@pytest.fixture(scope="module")
def gpu() -> Target:
    found = target_for_device(torch.cuda.get_device_name(), torch.cuda.get_device_capability())
    assert found is not None, "this GPU is not among the targets"
    return found


def run(*arguments: str | Path) -> str:
    """A process of its own: one in which the GPU is in use cannot be forked for a trace."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    ended = subprocess.run(
        [sys.executable, *map(str, arguments)], env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-4000:]
    return ended.stdout


@pytest.fixture(scope="module")
def spec(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("spec") / "small.yaml"
    path.write_text(SMALL.format(engine=engine, packed=PACKED[engine]))
    return path


@pytest.fixture(scope="module")
def candidates(gpu: Target, spec: Path) -> Path:
    """All candidates, compiled in parallel."""
    place = spec.with_name("candidates")
    select = ("--gpu", gpu.name, "--spec", spec)
    print(run(*command("tune", *select, "--compile-only", place)[1:]))
    return place


def test_an_engines_kernels_are_tuned_and_a_bundle_serves_the_winners(
    engine: str, gpu: Target, spec: Path, candidates: Path, tmp_path: Path
) -> None:
    out, built = tmp_path / "record.json", tmp_path / "b"

    print(run(*command("tune", "--compiled", candidates, "--out", out, "--budget", BUDGET)[1:]))

    record = read_record(out)
    for entry in record.entries:
        print(entry.kernel.rpartition(":")[2], entry.tuning, entry.workloads)
        for trial in entry.trials:
            print("  ", trial.configuration, trial.times_us, trial.error, trial.rejected)
    for entry in record.entries:
        best = entry.trial(entry.winner)
        assert best is not None and best.error is not None
        assert best.error <= TOLERANCE["bf16"]
        assert all(5 < time < 1e5 for time in best.times_us)
        assert best.registers is not None and entry.judged
        assert entry.session.device == torch.cuda.get_device_name()
    assert len(record.entries) >= 2, "within the budget"

    select = ("--gpu", gpu.name, "--spec", spec)
    run(*command("build", *select, "--out", built, "--tuning", out)[1:])
    measured = [v for v in Bundle.open(built).manifest.variants if v.tuning.status == "measured"]
    assert {variant.launch.kernel for variant in measured} == {e.kernel for e in record.entries}
    # The others' kernels are passed counts, and are judged in some of the classes of these.
    assert all(variant.tuning.checked for variant in measured) or engine != "vllm"
    assert any(variant.tuning.checked for variant in measured)

    served = json.loads(run(WORKER, built, "cold", "signatures").splitlines()[-1])
    print({name: value for name, value in served.items() if name != "results"})
    assert (served["compiled"], served["tuned"], served["built"]) == (0, 0, 0)


def test_a_second_run_measures_only_what_the_first_left(candidates: Path, tmp_path: Path) -> None:
    again = command(
        "tune", "--compiled", candidates, "--out", tmp_path / "r.json", "--budget", "2s", "--json"
    )[1:]

    first, second = (json.loads(run(*again)) for _ in range(2))

    assert first["left"] and first["fresh"] > 0
    assert second["reused"] >= first["fresh"]
