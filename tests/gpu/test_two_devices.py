"""Serving on two GPUs of one host: in one process, and in two ranks of a tensor-parallel group."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from gapped_bundles import without, without_variant
from launch_arguments import arguments, call
from signature_builders import signature

import ssd_aot
from ssd_aot import ops
from ssd_aot.errors import UsageError
from ssd_aot.problems import Problem, make_problem

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs here")

LENGTHS = [(300, 1, 40), (700,)]
RANK = Path(__file__).parent / "rank_worker.py"


@pytest.fixture
def both(bundle: Path) -> Iterator[None]:
    ssd_aot.load(bundle, devices=[0, 1])
    yield
    torch.cuda.set_device(0)


def problem(device: int, lengths: tuple[int, ...]) -> Problem:
    with torch.cuda.device(device):
        return make_problem(signature(num_seqs=(1, 64)), lengths, device=f"cuda:{device}")


def arguments_on(device: int, lengths: tuple[int, ...]) -> dict[str, Any]:
    with torch.cuda.device(device):
        return arguments(problem(device, lengths))


@pytest.mark.parametrize("lengths", LENGTHS, ids=["many", "one"])
@pytest.mark.parametrize("current", [0, 1])
def test_each_launch_goes_to_its_tensors_device_with_the_same_bits(
    both: None, lengths: tuple[int, ...], current: int
) -> None:
    on = [arguments_on(device, lengths) for device in (0, 1)]
    torch.cuda.set_device(current)

    for _ in range(3):
        for a in on:
            call(a)

    count = len(lengths)
    for name, rows in (("x", None), ("out", None), ("final_states_out", count)):
        first, second = (a[name][:rows].cpu() for a in on)
        assert torch.equal(first, second), name
        assert not first.isnan().any()


def test_the_idle_devices_memory_does_not_grow(both: None) -> None:
    a = arguments_on(1, (300, 1, 40))
    torch.cuda.set_device(1)
    before, _ = torch.cuda.mem_get_info(0)
    torch.cuda.reset_peak_memory_stats(0)
    allocated = torch.cuda.memory_allocated(0)

    for _ in range(100):
        call(a)
    torch.cuda.synchronize(1)

    assert torch.cuda.max_memory_allocated(0) == allocated
    assert torch.cuda.mem_get_info(0)[0] >= before


def test_a_prepared_plan_is_bound_to_its_device(both: None) -> None:
    on = [arguments_on(device, (300, 1, 40)) for device in (0, 1)]
    names = ("x", "dt", "B", "C", "out", "cu_seqlens", "initial_states", "final_states_out",
             "final_state_indices")  # fmt: skip
    plans = [
        ops.prepare(a["A"], D=a["D"], dt_bias=a["dt_bias"], chunk_size=128, dt_softplus=True)
        for a in on
    ]

    for plan, a in zip(plans, on, strict=True):
        for _ in range(3):
            plan(*(a[name] for name in names))

    assert torch.equal(on[0]["out"].cpu(), on[1]["out"].cpu())
    with pytest.raises(UsageError):
        plans[0](*(on[1][name] for name in names))


def ranks(*arguments_of: list[str]) -> list[subprocess.CompletedProcess[str]]:
    """Two processes of `rank_worker.py`, a GPU each, joined by NCCL."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    started = []
    for rank, given in enumerate(arguments_of):
        environment = {
            **os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "PYTHONPATH": os.pathsep.join([str(RANK.parent.parent), str(RANK.parent.parent.parent),
                                           os.environ.get("PYTHONPATH", "")]),
        }  # fmt: skip
        started.append(
            subprocess.Popen(
                [sys.executable, str(RANK), *given], env=environment, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
        )  # fmt: skip
    done = []
    for process in started:
        out, err = process.communicate(timeout=180)
        done.append(subprocess.CompletedProcess(process.args, process.returncode, out, err))
    return done


def test_two_ranks_run_one_read_only_bundle_with_the_same_choices_and_bits(bundle: Path) -> None:
    ended = ranks([str(bundle), "serve"], [str(bundle), "serve"])

    assert [rank.returncode for rank in ended] == [0, 0], ended[0].stderr + ended[1].stderr
    first, second = (json.loads(rank.stdout.splitlines()[-1]) for rank in ended)
    assert first["configurations"] == second["configurations"]
    assert first["bits"] == second["bits"]
    assert not first["triton"] and not second["triton"], "what could compile was imported"


def test_half_of_a_layer_on_each_of_two_ranks_sums_to_the_whole(bundle: Path) -> None:
    ended = ranks([str(bundle), "mixer"], [str(bundle), "mixer"])

    assert [rank.returncode for rank in ended] == [0, 0], ended[0].stderr + ended[1].stderr
    found = json.loads(ended[0].stdout.splitlines()[-1])
    print(found)
    assert found["error"] < 1e-2
    assert found["error"] <= 2 * found["rounding"]


def test_strict_mode_stops_both_ranks_at_load_with_one_message(
    bundle: Path, tmp_path: Path
) -> None:
    made = [
        without(bundle, tmp_path / str(rank) / "bundle", without_variant(lambda entry: True))
        for rank in (0, 1)
    ]

    ended = ranks(*([str(gapped.path), "strict"] for gapped in made))

    assert [rank.returncode for rank in ended] == [7, 7], ended[0].stderr + ended[1].stderr
    assert ended[0].stdout.splitlines()[-1] == ended[1].stdout.splitlines()[-1]
    assert "strict mode wants all of it" in ended[0].stdout
