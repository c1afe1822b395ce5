"""Tuning on two GPUs of one host. SSD_AOT_TEST_CANDIDATES names what `tune --compile-only` wrote:
the gain in wall-clock is measured on that alone, since starting a process outweighs a few launches.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from device_candidates import few_candidates, given_candidates, target_here

from ssd_aot.compilation.crews import LocalCrew
from ssd_aot.tuning.compiled_candidates import CompiledCandidates
from ssd_aot.tuning.host import gpus_here, measure_candidates
from ssd_aot.tuning.record_text import read_record
from ssd_aot.tuning.tuner import TuneReport
from ssd_aot.tuning.winning import within

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or len(gpus_here(target_here())) < 2,
    reason="fewer than two GPUs of one model here",
)

MOST_DIFFERING = 0.02
"""Share of the launches whose winner may be another in a second run."""

MOST_SLOWER = 0.03
"""By how much, relative, such a winner may be slower by the first run's own times."""


@pytest.fixture(scope="module")
def candidates(tmp_path_factory: pytest.TempPathFactory) -> CompiledCandidates:
    whole = given_candidates()
    return whole or few_candidates(tmp_path_factory.mktemp("compiled") / "candidates")


@pytest.fixture(scope="module")
def on_one(
    candidates: CompiledCandidates, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, float]:
    """The record made on the first GPU alone, and the wall-clock it took in seconds."""
    out = tmp_path_factory.mktemp("one") / "r.json"
    began = time.monotonic()
    report = measure_candidates(candidates, out, LocalCrew(1, [0]))
    elapsed = time.monotonic() - began
    assert not report.left
    return out, elapsed


def check_winners(first: Path, second: Path) -> None:
    """Equal by the tuner's own rule, within what two runs of one GPU may differ."""
    one, two = read_record(first), read_record(second)
    others = {entry.identity: entry for entry in two.entries}
    differing = []
    for entry in one.entries:
        other = others[entry.identity]
        if other.winner == entry.winner:
            continue
        differing.append(entry.launch)
        if entry.trial(other.winner) is not None:
            assert other.winner in within(entry.trials, MOST_SLOWER), entry.launch
    assert len(one.entries) == len(two.entries)
    assert len(differing) <= max(1, MOST_DIFFERING * len(one.entries)), differing


def test_two_gpus_find_the_winners_of_one_in_at_most_six_tenths_of_the_time(
    candidates: CompiledCandidates, on_one: tuple[Path, float], tmp_path: Path
) -> None:
    began = time.monotonic()
    report = measure_candidates(candidates, tmp_path / "r.json", LocalCrew(1))
    elapsed = time.monotonic() - began

    first, alone = on_one
    print(f"one GPU {alone:.1f} s, all GPUs {elapsed:.1f} s: {elapsed / alone:.2f}")
    assert not report.left
    check_winners(first, tmp_path / "r.json")
    if given_candidates() is not None:
        assert elapsed <= 0.6 * alone


@pytest.fixture
def ray_address() -> Iterator[str]:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'ssd-aot[ray]'")
    from ray.cluster_utils import Cluster

    # Named, since Ray finds GPUs by a library that containers may lack.
    model = torch.cuda.get_device_name().split()[-1]
    head = {
        "num_cpus": 2,
        "num_gpus": torch.cuda.device_count(),
        "resources": {f"accelerator_type:{model}": 1},
        "include_dashboard": False,
    }
    cluster: Any = Cluster(initialize_head=True, head_node_args=head)
    yield cluster.address
    cluster.shutdown()


def test_two_gpus_of_a_ray_cluster_find_the_winners_of_one(
    candidates: CompiledCandidates, on_one: tuple[Path, float], ray_address: str, tmp_path: Path
) -> None:
    from ssd_aot.cluster.crew import ClusterCrew

    notices: list[str] = []
    with ClusterCrew(ray_address, on_notice=notices.append) as crew:
        report: TuneReport = measure_candidates(candidates, tmp_path / "r.json", crew)

    assert not report.left
    assert any("GPUs on 1 node, to measure" in notice for notice in notices)
    check_winners(on_one[0], tmp_path / "r.json")
