"""Launching on a real GPU: graphs, streams, threads, views, and the first call."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from launch_arguments import arguments, call
from signature_builders import signature

import ssd_aot
from ssd_aot import ops
from ssd_aot.measurement.running import TOLERANCE, relative_error
from ssd_aot.problems import Problem, make_problem
from ssd_aot.signatures import Signature

SUPER = signature()
SMALL = signature(nheads=16, ngroups=1)


@pytest.fixture(scope="module", autouse=True)
def loaded(bundle: Path) -> None:
    ssd_aot.load(bundle)


def assert_right(p: Problem, a: dict[str, Any]) -> None:
    wanted = p.reference()
    assert wanted.states is not None
    assert relative_error(a["out"], wanted.out) < TOLERANCE["bf16"]
    states = a["final_states_out"][: len(p.lengths)]
    assert relative_error(states, wanted.states) < TOLERANCE["bf16"]


@pytest.mark.parametrize("lengths", [(300, 1, 40), (700,)], ids=["many", "one"])
@pytest.mark.parametrize("s", [SUPER, SMALL], ids=["super", "small"])
def test_a_graph_captured_from_the_first_call_equals_eager(
    bundle: Path, s: Signature, lengths: tuple[int, ...]
) -> None:
    """C55, and piecewise graphs: the replay follows inputs, offsets and slots changed in place."""
    ssd_aot.load(bundle)
    p = make_problem(s, lengths, device="cuda")
    a = arguments(p)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(a)
    graph.replay()
    torch.cuda.synchronize()
    assert_right(p, a)
    other = make_problem(s, lengths[::-1], device="cuda", seed=5)
    for name in ("x", "dt", "B", "C", "initial_states", "cu_seqlens"):
        getattr(p, name).copy_(getattr(other, name))
    slots = a["final_state_indices"]
    assert isinstance(slots, torch.Tensor)
    slots.add_(1)
    graph.replay()
    torch.cuda.synchronize()
    replayed = {name: a[name].clone() for name in ("out", "final_states_out")}
    a["out"].fill_(float("nan"))
    call(a)
    torch.cuda.synchronize()
    assert torch.equal(a["out"], replayed["out"])
    assert torch.equal(a["final_states_out"][1:], replayed["final_states_out"][1:])


def test_two_threads_on_two_streams_with_changing_batches_stay_right_and_grow_nothing() -> None:
    problems = [
        (p, arguments(p))
        for seed, lengths in enumerate(
            [(5,), (64, 1), (300, 20, 7), (9,) * 20, (700,), (33, 0, 90)]
        )
        for p in [make_problem(SUPER if seed % 2 else SMALL, lengths, device="cuda", seed=seed)]
    ]
    failures: list[BaseException] = []
    # The same streams in both runs: each keeps a piece of workspace.
    streams = [torch.cuda.Stream() for _ in range(2)]  # type: ignore[no-untyped-call]

    def work(turn: int, calls: int) -> None:
        try:
            stream = streams[turn]
            own = [
                (p, {**a, "out": torch.empty_like(a["out"]),
                     "final_states_out": torch.empty_like(a["final_states_out"])})
                for p, a in problems
            ]  # fmt: skip
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                for i in range(calls):
                    call(own[(i + turn) % len(own)][1])
            stream.synchronize()
            for p, a in own:
                assert_right(p, a)
        except BaseException as error:
            failures.append(error)

    def run(calls: int) -> None:
        threads = [threading.Thread(target=work, args=(turn, calls)) for turn in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures[0]
        gc.collect()
        torch.cuda.synchronize()

    run(200)
    device_before, host_before = torch.cuda.memory_allocated(), _resident_bytes()
    run(50_000)
    assert torch.cuda.memory_allocated() <= device_before + 2**20
    assert _resident_bytes() <= host_before + 2**24


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def test_the_prepared_layer_equals_the_drop_in_and_holds_no_tensor() -> None:
    p = make_problem(SUPER, (70, 5, 200), device="cuda")
    a, b = arguments(p), arguments(p)
    call(a)
    layer = ops.prepare(p.A, D=p.D, dt_bias=p.dt_bias, dt_softplus=True)
    for _ in range(2):
        layer(
            p.x, p.dt, p.B, p.C, b["out"], p.cu_seqlens, p.initial_states, b["final_states_out"],
            b["final_state_indices"],
        )  # fmt: skip
    assert torch.equal(a["out"], b["out"])
    assert torch.equal(a["final_states_out"][:3], b["final_states_out"][:3])
    watched = [weakref.ref(t) for t in (p.x, p.A, p.dt_bias, b["out"])]
    del p, a, b
    gc.collect()
    assert [ref() for ref in watched] == [None] * 4


def test_torch_compile_and_inference_mode_give_the_same_bits() -> None:
    p = make_problem(SMALL, (40, 90), device="cuda")
    plain, compiled = arguments(p), arguments(p)
    with torch.inference_mode():
        call(plain)

    def step(a: dict[str, Any]) -> torch.Tensor:
        call(a)
        out: torch.Tensor = a["out"]
        return out + 1

    result = torch.compile(step, backend="eager", fullgraph=True)(compiled)
    assert torch.equal(result - 1, plain["out"] + 1 - 1)
    assert torch.equal(compiled["out"], plain["out"])


def test_no_tokens_at_all_leaves_states_as_they_were() -> None:
    p = make_problem(SUPER, (0, 0), device="cuda")
    a = arguments(p)
    call(a)
    states = a["final_states_out"]
    assert isinstance(states, torch.Tensor)
    assert p.initial_states is not None
    assert torch.equal(states[:2], p.initial_states)


def test_a_misaligned_view_after_an_aligned_one_is_not_taken_for_it() -> None:
    p = make_problem(SUPER, (50,), device="cuda")
    a = arguments(p)
    call(a)
    shifted = torch.empty(p.x.numel() + 8, dtype=p.x.dtype, device="cuda")[1 : p.x.numel() + 1]
    with pytest.raises(ssd_aot.errors.MissingLaunchError, match="unaligned"):
        call({**a, "out": shifted.view(p.x.shape)})


FIRST_CALL = """
import sys, time, json, statistics
sys.modules["triton"] = None
sys.path[:0] = [{tests!r}, {root!r}]
import torch, ssd_aot
from signature_builders import signature
from ssd_aot.problems import make_problem
from launch_arguments import arguments, call
torch.zeros(1, device="cuda")
# Sizes that no warm-up calls with.
p = make_problem(signature(), (200, 57), device="cuda")
a = arguments(p)
torch.cuda.synchronize()
began = time.perf_counter()
import ssd_aot.runtime.loading, ssd_aot.runtime.warming
imports = time.perf_counter() - began
began = time.perf_counter()
ssd_aot.load({bundle!r}, models=["nemotron-3-super-120b"], tp=1, warm={warm})
load = time.perf_counter() - began

def timed_us():
    # An engine's mixer makes its views anew in every layer.
    for name in ("x", "dt", "B", "C", "out", "initial_states"):
        a[name] = a[name][:]
    torch.cuda.synchronize()
    began = time.perf_counter()
    call(a)
    taken = time.perf_counter() - began
    torch.cuda.synchronize()
    return taken * 1e6

first, median = timed_us(), statistics.median(timed_us() for _ in range(400))
after_waits = []
for _ in range(100):
    torch.cuda._sleep(4_000_000)  # cycles: 2 ms
    after_waits.append(timed_us())
print(json.dumps({{"import_ms": imports * 1e3, "load_ms": load * 1e3, "first_us": first,
                  "median_us": median, "after_waits_us": statistics.median(after_waits)}}))
"""


@pytest.fixture(scope="module", params=[True, False], ids=["warm", "cold"])
def fresh_process(request: pytest.FixtureRequest, bundle: Path) -> tuple[bool, dict[str, float]]:
    """Whether it loaded warm, and its times."""
    here, warm = Path(__file__).parent, request.param
    code = FIRST_CALL.format(
        tests=str(here.parent), root=str(here.parent.parent), bundle=str(bundle), warm=warm
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    print(f"warm={warm}: {found}")
    return warm, found


def test_the_first_call_in_a_fresh_process(fresh_process: tuple[bool, dict[str, float]]) -> None:
    """After a warm load it is like any call after a wait: two milliseconds of waiting for the
    device leave Python's and the driver's code cold."""
    warm, found = fresh_process
    assert found["first_us"] <= (2 * found["after_waits_us"] if warm else 10_000)
