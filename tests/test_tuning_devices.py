"""Several GPUs share a run: one record, whichever measured what, and no GPU takes it with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import torch
from station_builders import (
    BusyStation,
    TableStation,
    at,
    inline_station,
    killed,
    lost_after,
    open_reference,
    process_station,
    slowly,
)
from tuning_builders import SESSION, a_crash, compiled, launch_of, small

import ssd_aot.sources.batches
import ssd_aot.tuning.workloads
from ssd_aot.compilation.crews import LocalCrew
from ssd_aot.errors import HostError
from ssd_aot.launches import Configuration
from ssd_aot.runtime import driver
from ssd_aot.tuning.attempts import Clock
from ssd_aot.tuning.compiled_candidates import CompiledCandidates
from ssd_aot.tuning.groups import make_groups
from ssd_aot.tuning.record_text import read_record
from ssd_aot.tuning.records import Entry, Trial
from ssd_aot.tuning.schedule import Schedule, Unit
from ssd_aot.tuning.stations import Station, StationLost
from ssd_aot.tuning.tuner import TuneReport, tune_on

TESTS = Path(__file__).parent
GEOMETRIES = [small(headdim=size, has_initstates=has) for size in (16, 32) for has in (True, False)]


@pytest.fixture(scope="module")
def made() -> CompiledCandidates:
    """The launches of two geometries, three candidates each."""
    return compiled(GEOMETRIES)


@pytest.fixture(scope="module")
def few() -> CompiledCandidates:
    """The launches of one geometry; of decay alone there are several candidates."""
    return compiled([small()], kernels=("decay",))


@pytest.fixture
def short_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssd_aot.sources.batches, "LONGEST_TOKENS", 90)
    monkeypatch.setattr(ssd_aot.tuning.workloads, "MOST_SETS", 1)


def run(
    stations: list[Station], candidates: CompiledCandidates, out: Path, **options: object
) -> TuneReport:
    return tune_on(stations, candidates, out, date=SESSION.date, **options)  # type: ignore[arg-type]


def scheduled(made: CompiledCandidates) -> Schedule:
    groups = make_groups(made.signatures, made.launches)
    return Schedule(groups, made.launches, lambda member: None)


def entry(unit: Unit, winner: Configuration) -> Entry:
    planned = unit.member.candidates.planned
    return Entry(
        identity=planned.launch.identity, kernel=planned.launch.kernel,
        launch=str(planned.launch), session=SESSION, source="0" * 64, offered="0" * 64,
        offered_count=1, workloads=(), default=winner, winner=winner, trials=(Trial(winner),),
    )  # fmt: skip


def settle(schedule: Schedule, unit: Unit) -> None:
    """With its last candidate as the winner."""
    schedule.settle(unit, entry(unit, unit.member.candidates.usable[-1]))


def test_one_station_takes_each_group_whole_and_the_kernels_in_their_order(
    made: CompiledCandidates,
) -> None:
    schedule = scheduled(made)
    groups = make_groups(made.signatures, made.launches)

    taken = []
    while (unit := schedule.take()) is not None:
        taken.append(unit.member)
        settle(schedule, unit)

    assert taken == [member for group in groups for member in group.members]
    assert not schedule.left and schedule.done == schedule.total


def test_a_launch_waits_for_its_own_operations_earlier_kernels_and_for_no_others(
    made: CompiledCandidates,
) -> None:
    schedule = scheduled(made)
    scans = {e.planned.launch for e in made.launches if e.planned.launch.kernel == "scan"}
    narrow = {s for s in scans if dict(s.constexprs)["HEADDIM"] == 16}
    under_way = []
    # Every scan of the narrow geometry is settled, and those of the other are under way.
    while (unit := schedule.take()) is not None and unit.member.launch.kernel == "scan":
        if unit.member.launch in narrow or unit.lead is None:
            under_way.append(unit)
        if unit.member.launch in narrow:
            settle(schedule, unit)

    assert unit is not None and unit.member.launch.kernel == "segment_states"
    assert dict(unit.member.launch.constexprs)["HEADDIM"] == 16


def test_earlier_kernels_run_with_their_winners_and_later_ones_with_their_defaults(
    made: CompiledCandidates,
) -> None:
    schedule = scheduled(made)
    seen = {}
    while (unit := schedule.take()) is not None:
        chosen = schedule.chosen(unit)
        seen[unit.member.launch.kernel] = {
            launch.kernel: chosen.candidates[launch].usable.index(configuration)
            for launch, configuration in chosen.configurations.items()
        }
        settle(schedule, unit)

    last = len(launch_of(made, "scan").usable) - 1
    assert seen["segment_states"]["scan"] == last
    assert seen["segment_states"]["state_passing"] == 0
    assert seen["scan"] == dict.fromkeys(seen["scan"], 0)
    assert seen["state_passing"]["scan"] == seen["state_passing"]["segment_states"] == last


def test_a_unit_that_is_given_back_is_the_next_to_be_taken(made: CompiledCandidates) -> None:
    schedule = scheduled(made)
    first = schedule.take()
    assert first is not None

    schedule.give_back(first)

    assert schedule.take() is first


def test_three_gpus_make_the_record_of_one(made: CompiledCandidates, tmp_path: Path) -> None:
    scan, passing = (launch_of(made, kernel).usable for kernel in ("scan", "state_passing"))
    times = {("scan", scan[1]): 4.0, ("scan", scan[2]): 3.98, ("state_passing", passing[2]): 2.0}
    alone: list[Station] = [TableStation(times=times)]
    three = [TableStation(f"GPU {n}", times, before=slowly) for n in range(3)]

    run(alone, made, tmp_path / "one.json")
    report = run([*three], made, tmp_path / "three.json")

    assert (tmp_path / "three.json").read_bytes() == (tmp_path / "one.json").read_bytes()
    assert all(station.tried for station in three)
    tried = [trial for station in three for trial in station.tried]
    assert len(tried) == report.fresh
    assert all(station.closed.is_set() for station in three)


def test_a_gpu_that_is_lost_leaves_its_work_to_the_others(
    made: CompiledCandidates, tmp_path: Path
) -> None:
    alone: list[Station] = [TableStation()]
    whole, lost = TableStation("GPU 0", before=slowly), TableStation("GPU 1", before=lost_after(2))
    notices: list[str] = []

    run(alone, made, tmp_path / "one.json")
    report = run([whole, lost], made, tmp_path / "two.json", on_notice=notices.append)

    assert (tmp_path / "two.json").read_bytes() == (tmp_path / "one.json").read_bytes()
    assert not report.left
    assert len(notices) == 1 and "GPU 1: the GPU fell off the bus" in notices[0]


def test_a_run_whose_last_gpu_is_lost_says_so_and_the_next_goes_on(
    made: CompiledCandidates, tmp_path: Path
) -> None:
    out = tmp_path / "r.json"
    lost: list[Station] = [TableStation(f"GPU {n}", before=lost_after(3)) for n in range(2)]
    with pytest.raises(StationLost, match="fell off the bus"):
        run(lost, made, out)

    rest = run([TableStation()], made, out)
    whole = run([TableStation()], made, tmp_path / "whole.json")

    assert rest.fresh == whole.fresh - 6
    assert read_record(out) == read_record(tmp_path / "whole.json")


def test_a_gpu_of_another_name_is_left_out(made: CompiledCandidates, tmp_path: Path) -> None:
    first = TableStation("GPU 0", before=slowly)
    other = TableStation("GPU 1", session=at(SESSION, "NVIDIA H200 NVL"), before=slowly)
    notices: list[str] = []

    run([first, other], made, tmp_path / "r.json", on_notice=notices.append)

    (notice,) = notices
    assert "another GPU than the one measured on first" in notice
    assert not (first.tried and other.tried)


def test_a_gpu_that_others_hold_is_not_waited_for_when_all_is_done(
    made: CompiledCandidates, tmp_path: Path
) -> None:
    notices: list[str] = []

    report = run(
        [TableStation(), BusyStation("GPU 1")], made, tmp_path / "r.json",
        on_notice=notices.append,
    )  # fmt: skip

    assert not report.left
    assert notices == ["left out: GPU 1: was not ready before the others had finished"]


def test_the_budget_ends_the_work_of_all(made: CompiledCandidates, tmp_path: Path) -> None:
    ticks = iter(range(1000))
    clock = Clock(budget_s=9, now=lambda: float(next(ticks)))
    stations: list[Station] = [TableStation(f"GPU {n}", before=slowly) for n in range(2)]

    stopped = run(stations, made, tmp_path / "r.json", clock=clock)
    rest = run([TableStation()], made, tmp_path / "r.json")
    whole = run([TableStation()], made, tmp_path / "whole.json")

    assert 0 < stopped.fresh <= 9 and stopped.left
    assert stopped.fresh + rest.fresh == whole.fresh


def test_a_fault_of_the_tuner_itself_ends_the_run_and_the_stations(
    made: CompiledCandidates, tmp_path: Path
) -> None:
    def fault(before: int) -> None:
        raise ZeroDivisionError("a bug")

    stations = [TableStation("GPU 0", before=fault), TableStation("GPU 1", before=slowly)]

    with pytest.raises(ZeroDivisionError):
        run([*stations], made, tmp_path / "r.json")

    assert all(station.closed.is_set() for station in stations)


def test_candidates_that_end_their_process_or_device_are_rejected_and_the_run_finishes(
    few: CompiledCandidates, tmp_path: Path
) -> None:
    launch = launch_of(few, "decay")
    lost, dead, right = launch.usable
    faults = {("decay", lost): a_crash, ("decay", dead): killed}
    station = process_station(few, "GPU 0", partial(open_reference, faults=faults))

    report = run([station], few, tmp_path / "r.json")

    settled = read_record(tmp_path / "r.json").entry(launch.planned.launch)
    assert not report.left
    assert settled is not None and settled.winner == right
    reasons = [trial.rejected for trial in settled.trials]
    assert "illegal memory access" in reasons[0]
    assert "its process ended 2 times" in reasons[1] and "SIGKILL" in reasons[1]


@pytest.mark.parametrize(("deaths", "rejected"), [(1, False), (2, True)])
def test_a_process_that_ended_is_given_the_candidate_once_more(
    few: CompiledCandidates, tmp_path: Path, short_problems: None, deaths: int, rejected: bool
) -> None:
    launch = launch_of(few, "decay")
    station, workers = inline_station(few, dying_with=launch.usable[1], deaths=deaths)

    run([station], few, tmp_path / "r.json")

    settled = read_record(tmp_path / "r.json").entry(launch.planned.launch)
    assert settled is not None
    assert [bool(trial.rejected) for trial in settled.trials] == [False, rejected, False]
    assert len(workers) == 1 + deaths
    assert all(worker.closed for worker in workers)


def test_a_gpu_that_cannot_be_opened_again_is_lost(
    few: CompiledCandidates, tmp_path: Path, short_problems: None
) -> None:
    culprit = launch_of(few, "decay").usable[1]
    station, workers = inline_station(few, dying_with=culprit, deaths=1, opened=1)

    with pytest.raises(StationLost, match="no such GPU"):
        run([station], few, tmp_path / "r.json")

    assert len(workers) == 2


KILLED = """
import os, signal, sys
from pathlib import Path
from station_builders import process_station
from tuning_builders import SESSION, compiled, small
from ssd_aot.tuning.tuner import tune_on

def progress(state):
    if state.done >= 4:
        print(*(station._worker.pid for station in stations), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    made = compiled([small()], kernels=("decay",))
    stations = [process_station(made, f"GPU {n}") for n in range(2)]
    tune_on(stations, made, Path(sys.argv[1]), date=SESSION.date, on_progress=progress)
"""


def test_a_killed_run_leaves_no_process_and_loses_no_measured_candidate(
    few: CompiledCandidates, tmp_path: Path
) -> None:
    script, out = tmp_path / "killed.py", tmp_path / "r.json"
    script.write_text(KILLED)
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}"}
    ended = subprocess.run(
        [sys.executable, str(script), str(out)], env=environment, capture_output=True, text=True
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    journalled = (tmp_path / "r.json.journal").read_text().count('"basis"')

    station = process_station(few, "GPU 0")
    resumed = run([station], few, out)

    assert journalled >= 3
    assert resumed.reused >= 3 and not resumed.left
    for pid in map(int, ended.stdout.split()):
        assert _is_gone(pid)


def _is_gone(pid: int) -> bool:
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize(
    ("wanted", "names"),
    [((), ["GPU 0", "GPU 2"]), ((2, 2), ["GPU 2"])],
    ids=["all of the model", "those that are named"],
)
def test_the_gpus_that_measure(
    few: CompiledCandidates, three_gpus: None, wanted: tuple[int, ...], names: list[str]
) -> None:
    stations = LocalCrew(1, wanted).stations(few, SESSION.date)

    assert [station.name for station in stations] == names


def test_a_gpu_that_is_named_must_be_of_the_model(
    few: CompiledCandidates, three_gpus: None
) -> None:
    with pytest.raises(HostError, match="tuning for h200 needs that GPU") as caught:
        LocalCrew(1, [0, 1]).stations(few, SESSION.date)

    assert caught.value.found == "NVIDIA H100 80GB HBM3"


@pytest.fixture
def three_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two H200s and another GPU between them, as the driver tells."""
    names = ["NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA H200"]

    def device(index: int) -> driver.Device:
        if index >= len(names):
            raise HostError("invalid device ordinal")
        return driver.Device(index, names[index], (9, 0))

    monkeypatch.setattr(driver, "device", device)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
