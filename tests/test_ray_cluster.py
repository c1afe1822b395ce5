"""A Ray cluster of two nodes compiles and measures what this host would, to the same bytes."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from command_line import TINY, python, ssd_aot
from spec_builders import write_spec
from station_builders import TableStation, open_reference
from tuning_builders import H200, SESSION, compiled, launch_of, small

from ssd_aot.cluster.crew import ClusterCrew, is_accelerator
from ssd_aot.cluster.executor import ClusterExecutor
from ssd_aot.cluster.link import ClusterLost, Link
from ssd_aot.cluster.nodes import admit
from ssd_aot.cluster.scratch import own_scratch
from ssd_aot.compilation.workers import ExecutorLost, WorkerDied, work_off
from ssd_aot.errors import HostError
from ssd_aot.progress import Progress
from ssd_aot.targets import target
from ssd_aot.tuning.record_text import read_record, write_record
from ssd_aot.tuning.stations import StationLost
from ssd_aot.tuning.tuner import tune_on

MEASURED = """\
version: 1
models:
  layer: {nheads: 128, headdim: 64, dstate: 128, ngroups: 8}
matrix: {dtype: [bf16], state_dtype: [fp32], HAS_INITSTATES: [true], num_seqs: [many]}
"""
"""One signature that the shipped record covers, in two launches."""

SMALL: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
GPU: dict[str, Any] = {"num_gpus": 1, "resources": {"accelerator_type:H200": 1}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one CPU and one pretended H200 each."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'ssd-aot[ray]'")
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.delenv("RAY_ADDRESS", raising=False)
        # Short, for the names of sockets lie in it.
        patch.setenv("RAY_TMPDIR", folder)
        # The nodes import what the tests hand them.
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        head = {**SMALL, **GPU, "include_dashboard": False}
        made: Any = Cluster(initialize_head=True, head_node_args=head)
        made.add_node(**SMALL, **GPU)
        yield made
        made.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def link(cluster: Any) -> Iterator[Link]:
    with closing(Link(cluster.address)) as made:
        yield made


@pytest.fixture
def notices() -> list[str]:
    return []


@pytest.fixture
def executor(link: Link, notices: list[str]) -> Iterator[ClusterExecutor]:
    made = ClusterExecutor(link, link.nodes(), on_notice=notices.append)
    yield made
    made.shutdown(cancel_futures=True)


def process_id(_: object = None) -> int:
    return os.getpid()


def slow_process_id() -> int:
    time.sleep(2)
    return os.getpid()


def die(_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(marker: str) -> int:
    if not Path(marker).exists():
        Path(marker).write_text(str(os.getpid()))
        die(marker)
    return os.getpid()


def no_space(_: object) -> None:
    raise OSError(28, "No space left on device")


class Killer(threading.Thread):
    """Kills the first worker of these nodes that it sees busy."""

    def __init__(self, nodes: list[Any]) -> None:
        super().__init__()
        self._parents = {node.all_processes["raylet"][0].process.pid for node in nodes}
        self.killed = 0

    def __call__(self, progress: Progress) -> None:
        """In the place of a printer: begins once the first item is done."""
        if progress.done == 1:
            self.start()

    def run(self) -> None:
        while not self.killed:
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    if self._is_busy(process):
                        os.kill(int(process.name), signal.SIGKILL)
                        self.killed = int(process.name)
                        return

    def _is_busy(self, process: Path) -> bool:
        # The name that Ray gives a process while it carries out a call.
        busy = b"SsdAotWorker.run" in (process / "cmdline").read_bytes()
        parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
        return busy and int(parent) in self._parents


def test_a_build_has_the_digest_of_a_local_one_though_a_worker_is_killed_and_a_node_is_refused(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = write_spec(tmp_path, TINY)
    arguments = "build", "--gpu", "b200", "--spec", spec, "--json", "--out"
    local = ssd_aot(*arguments, tmp_path / "local")
    other = cluster.add_node(**SMALL, env_vars={"TRITON_F32_DEFAULT": "ieee"})
    killer = Killer(cluster.list_all_nodes())
    monkeypatch.setattr("ssd_aot.progress.ProgressPrinter", lambda: killer)

    result = ssd_aot(
        *arguments, tmp_path / "ray", "--workers", "ray", "--ray-address", cluster.address
    )
    cluster.remove_node(other)

    assert killer.killed
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["digest"] == json.loads(local.stdout)["digest"]
    assert "gets no work: another environment: found (('TRITON_F32_DEFAULT'" in result.stderr
    assert "ray: 2 workers on 2 nodes, to compile" in result.stderr
    assert "died (" in result.stderr and "is tried elsewhere" in result.stderr


def test_records_merged_in_either_order_give_one_digest_here_and_on_the_cluster(
    cluster: Any, tmp_path: Path
) -> None:
    spec = write_spec(tmp_path, MEASURED)
    whole = read_record(Path(str(resources.files("ssd_aot") / "tuning_records/h200.builtin.json")))
    halves = [tmp_path / "a.json", tmp_path / "b.json"]
    for number, half in enumerate(halves):
        write_record(half, replace(whole, entries=whole.entries[number::2]))
    for name, order in (("ab", halves), ("ba", halves[::-1])):
        merged = ssd_aot("tune", "--merge", *order, "--out", tmp_path / f"{name}.json")
        assert merged.exit_code == 0, merged.stderr
    arguments = "build", "--gpu", "h200", "--spec", spec, "--require-tuned", "--json", "--tuning"

    local = ssd_aot(*arguments, tmp_path / "ab.json", "--out", tmp_path / "local")
    ray = ssd_aot(
        *arguments, tmp_path / "ba.json", "--out", tmp_path / "ray", "--workers", "ray",
        "--ray-address", cluster.address,
    )  # fmt: skip

    assert (local.exit_code, ray.exit_code) == (0, 0), local.stderr + ray.stderr
    assert json.loads(local.stdout)["digest"] == json.loads(ray.stdout)["digest"]


def test_items_go_to_both_nodes_and_their_exceptions_come_back(executor: ClusterExecutor) -> None:
    futures = [executor.submit(slow_process_id) for _ in range(4)]
    pids = {future.result() for future in futures}

    assert executor.slots == 2
    assert len(pids) == 2 and os.getpid() not in pids
    with pytest.raises(ZeroDivisionError):
        executor.submit(divmod, 1, 0).result()
    with pytest.raises(HostError, match="cannot write its temporary files"):
        executor.submit(no_space, 1).result()


def test_an_item_whose_worker_is_killed_once_is_done_on_another_node(
    executor: ClusterExecutor, notices: list[str], tmp_path: Path
) -> None:
    marker = tmp_path / "killed"
    first = executor.submit(die_once, str(marker))
    second = executor.submit(process_id)

    assert first.result() != int(marker.read_text())
    assert isinstance(second.result(), int)
    assert any("is tried elsewhere" in notice for notice in notices)


def test_an_item_that_kills_each_worker_is_named_and_the_others_are_done(
    executor: ClusterExecutor, tmp_path: Path
) -> None:
    culprit = executor.submit(die, 1)
    others = [executor.submit(process_id) for _ in range(3)]

    died = culprit.result()

    assert isinstance(died, WorkerDied)
    assert died.where.count("ActorDiedError") == 2
    assert all(isinstance(other.result(), int) for other in others)


def test_what_a_lost_connection_leaves_is_done_here(
    link: Link, executor: ClusterExecutor, notices: list[str], tmp_path: Path
) -> None:
    work = work_off(process_id, range(4), jobs=2, scratch=tmp_path, executor=executor)
    _, first = next(work)

    link._process.kill()
    rest = dict(work)

    assert len(rest) == 3 and first not in rest.values()
    assert any("was lost" in notice for notice in notices)
    with pytest.raises(ExecutorLost):
        executor.submit(process_id)


def test_two_nodes_gpus_make_the_record_of_one(cluster: Any, tmp_path: Path) -> None:
    made = compiled([small()], kernels=("decay",))
    best = launch_of(made, "decay").usable[2]
    times = {("decay", best): 2.0}
    notices: list[str] = []
    with ClusterCrew(
        cluster.address, on_notice=notices.append,
        open_device=partial(open_reference, times=times),
    ) as crew:  # fmt: skip
        stations = crew.stations(made, SESSION.date)

        tune_on(stations, made, tmp_path / "two.json", date=SESSION.date)

    tune_on([TableStation(times=times)], made, tmp_path / "one.json", date=SESSION.date)
    entries = {
        name: [(e.launch, e.winner, [t.times_us for t in e.trials], e.session)
               for e in read_record(tmp_path / f"{name}.json").entries]
        for name in ("one", "two")
    }  # fmt: skip
    assert notices == ["ray: 2 GPUs on 2 nodes, to measure"]
    assert entries["two"] == entries["one"]


def test_measuring_ends_by_name_when_the_connection_is_lost(cluster: Any, tmp_path: Path) -> None:
    made = compiled([small()], kernels=("decay",))
    with ClusterCrew(cluster.address, open_device=open_reference) as crew:
        stations = crew.stations(made, SESSION.date)
        crew._link._process.kill()

        with pytest.raises(StationLost, match="no connection to the Ray cluster"):
            tune_on(stations, made, tmp_path / "r.json", date=SESSION.date)


def test_what_a_killed_call_leaves_goes_with_the_next_on_its_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = f"""
import os, signal, tempfile
tempfile.tempdir = {str(tmp_path)!r}
from ssd_aot.cluster.scratch import own_scratch
with own_scratch() as folder:
    (folder / "kernel.ptx").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with own_scratch() as living:
        python("-c", code)
        left = {path for path in tmp_path.glob("*") if path.is_dir()} - {living}
        tempfile.tempdir = str(tmp_path)
        with own_scratch() as own:
            assert tempfile.gettempdir() == str(own)
            assert len(left) == 1 and not any(path.exists() for path in left)
            assert living.exists()

    assert not list(tmp_path.iterdir())


def test_a_cluster_without_the_gpu_says_what_it_has(cluster: Any) -> None:
    with ClusterCrew(cluster.address) as crew:
        assert crew.has_gpu(H200) and not crew.has_gpu(target("b200"))
        with pytest.raises(HostError, match="the cluster has no b200") as caught:
            crew.check_gpu(target("b200"))

    assert caught.value.found == "accelerator_type:H200"


def test_a_node_that_lacks_what_is_here_is_refused_by_name(
    link: Link, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("def identity():\n    return {}\n")
    monkeypatch.syspath_prepend(tmp_path)
    only_here = importlib.import_module("only_here")

    admitted, refusals = admit(link, link.nodes(), only_here.identity)

    assert not admitted
    assert [refusal.node for refusal in refusals] == link.nodes()
    assert all(str(refusal).endswith("No module named 'only_here'") for refusal in refusals)


def test_an_address_without_a_cluster_is_named(cluster: Any) -> None:
    with pytest.raises(ClusterLost) as caught:
        Link("127.0.0.1:1")

    assert caught.value.where == "127.0.0.1:1"
    assert caught.value.exit_code == 3


def test_without_ray_the_mend_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ssd_aot.cluster.link.find_spec", lambda name: None)

    result = ssd_aot("build", "--gpu", "h200", "--workers", "ray")

    assert result.exit_code == 3
    assert "pip install 'ssd-aot[ray]'" in result.stderr


@pytest.mark.parametrize(
    ("command", "place"),
    [
        (("build", "--gpu", "h200", "--ray-address", "auto"), "--ray-address"),
        (("tune", "--gpu", "h200", "--workers", "ray", "--device", "1"), "--device"),
    ],
)
def test_options_that_contradict_each_other_are_refused(
    command: tuple[str, ...], place: str
) -> None:
    result = ssd_aot(*command)

    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {place}: ")


@pytest.mark.parametrize(
    ("accelerator", "gpu", "same"),
    [
        ("H200", "h200", True),
        ("H20", "h200", False),
        ("GH200", "h200", False),
        ("A100-80G", "a100", True),
        ("RTX-PRO-6000", "rtx-pro-6000", True),
        ("GeForce-RTX-4090", "rtx-4090", True),
        ("GeForce-RTX-4090-D", "rtx-4090", False),
        ("B200", "gb200", False),
    ],
)
def test_rays_names_of_gpus_are_matched_whole(accelerator: str, gpu: str, same: bool) -> None:
    assert is_accelerator(accelerator, target(gpu)) is same
