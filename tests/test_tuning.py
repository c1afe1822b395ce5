"""Right before fast, within a budget, on disk at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from torch import Tensor
from tuning_builders import (
    FAULTS,
    H200,
    SESSION,
    FakeMeasure,
    Fault,
    a_crash,
    compiled,
    launch_of,
    nan_in_one_row,
    small,
)

import ssd_aot.sources.batches
import ssd_aot.tuning.workloads
from ssd_aot.cli import main
from ssd_aot.commands.tune import read_seconds
from ssd_aot.errors import BundleError, HostError, UsageError
from ssd_aot.launches import Configuration
from ssd_aot.progress import Progress
from ssd_aot.targets import target
from ssd_aot.tuning.attempts import Clock
from ssd_aot.tuning.compiled_candidates import CompiledCandidates
from ssd_aot.tuning.form_rules import form_rule
from ssd_aot.tuning.groups import make_groups
from ssd_aot.tuning.record_text import read_record
from ssd_aot.tuning.records import Entry, FormPoint, Trial
from ssd_aot.tuning.tuner import TuneReport, tune
from ssd_aot.tuning.winning import winner
from ssd_aot.tuning.workloads import workloads

TESTS = Path(__file__).parent


@pytest.fixture(autouse=True)
def short_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssd_aot.sources.batches, "LONGEST_TOKENS", 90)
    monkeypatch.setattr(ssd_aot.tuning.workloads, "MOST_SETS", 1)


@pytest.fixture(scope="module")
def made() -> Iterator[CompiledCandidates]:
    yield compiled()


def run(
    made: CompiledCandidates, measure: FakeMeasure, out: Path, clock: Clock | None = None
) -> TuneReport:
    return tune(made, measure, SESSION, out, clock=clock)


def entry_of(path: Path, made: CompiledCandidates, kernel: str) -> Entry:
    found = read_record(path).entry(launch_of(made, kernel, HAS_INITSTATES=True).planned.launch)
    assert found is not None
    return found


def offered(made: CompiledCandidates, kernel: str) -> tuple[Configuration, ...]:
    return launch_of(made, kernel).planned.candidates


@pytest.mark.parametrize(("fault", "reason"), FAULTS)
def test_the_fastest_candidate_does_not_win_when_it_is_wrong(
    made: CompiledCandidates, tmp_path: Path, fault: Fault, reason: str
) -> None:
    first, wrong, third = offered(made, "scan")
    measure = FakeMeasure(
        times={("scan", wrong): 1.0, ("scan", third): 5.0}, faults={("scan", wrong): fault}
    )

    run(made, measure, tmp_path / "h200.json")

    entry = entry_of(tmp_path / "h200.json", made, "scan")
    rejected = entry.trial(wrong)
    assert entry.winner == third
    assert rejected is not None and reason in rejected.rejected and not rejected.times_us
    kept = entry.trial(first)
    assert kept is not None and kept.error is not None and kept.error < 1e-5


def too_large(out: Tensor, calls: int) -> None:
    out.mul_(1.5)


def test_the_size_of_a_wrong_candidates_error_is_kept(
    made: CompiledCandidates, tmp_path: Path
) -> None:
    wrong = offered(made, "scan")[0]
    measure = FakeMeasure(faults={("scan", wrong): too_large})

    run(made, measure, tmp_path / "h200.json")

    trial = entry_of(tmp_path / "h200.json", made, "scan").trial(wrong)
    assert trial is not None
    assert trial.error == pytest.approx(0.5, rel=1e-3)


def test_candidates_within_the_noise_leave_the_earliest_the_winner(
    made: CompiledCandidates, tmp_path: Path
) -> None:
    first, second, third = offered(made, "scan")
    times = {("scan", first): 100.0, ("scan", second): 99.0, ("scan", third): 98.5}

    run(made, FakeMeasure(times=times), tmp_path / "h200.json")

    assert entry_of(tmp_path / "h200.json", made, "scan").winner == first


def test_the_winner_has_the_least_mean_over_the_workloads() -> None:
    few, many, fair = (Configuration((("B", size),), 4, 1) for size in (1, 2, 3))
    trials = [
        Trial(few, times_us=(10.0, 300.0)),
        Trial(many, times_us=(30.0, 100.0)),
        Trial(fair, times_us=(11.0, 110.0)),
    ]

    assert winner(trials, (few, many, fair)) == fair


def test_other_kernels_run_with_the_winners_found_so_far(
    made: CompiledCandidates, tmp_path: Path
) -> None:
    best = offered(made, "scan")[2]
    measure = FakeMeasure(times={("scan", best): 1.0})

    run(made, measure, tmp_path / "h200.json")

    decay = entry_of_any(tmp_path / "h200.json", "decay")
    assert decay.trials[0].mean_us == pytest.approx(11.0, rel=1e-3)


def entry_of_any(path: Path, kernel: str) -> Entry:
    return next(entry for entry in read_record(path).entries if entry.kernel == kernel)


def test_other_members_of_a_group_are_checked_and_timed_under_winner_and_default_alone(
    made: CompiledCandidates, tmp_path: Path
) -> None:
    best = offered(made, "scan")[2]
    run(made, FakeMeasure(times={("scan", best): 1.0}), tmp_path / "h200.json")

    other = launch_of(made, "scan", HAS_INITSTATES=False).planned.launch
    entry = read_record(tmp_path / "h200.json").entry(other)

    assert entry is not None and entry.winner == best
    assert [trial.configuration for trial in entry.trials] == [offered(made, "scan")[0], best]


def test_a_group_is_led_by_initial_states_in_float32(tmp_path: Path) -> None:
    states = [small(state_dtype=kind, has_initstates=has) for kind in ("fp16", "fp32")
              for has in (False, True)]  # fmt: skip
    made = compiled(states)

    groups = make_groups(made.signatures, made.launches)

    assert [group.kernel for group in groups] == [
        "scan", "scan", "segment_states", "decay", "state_passing",
    ]  # fmt: skip
    for group in groups:
        lead = group.members[0].launch
        assert dict(lead.constexprs).get("HAS_INITSTATES", True)
        assert "*fp16" not in {a.type for a in lead.arguments}


def test_workloads_span_few_and_many_tokens_and_the_ends_of_the_heads() -> None:
    made = compiled([small(nheads=heads, tp=heads, num_seqs=(1, 64)) for heads in (2, 32)])
    scan = next(g for g in make_groups(made.signatures, made.launches) if g.kernel == "scan")

    names = [workload.name for workload in workloads(scan.members[0], H200.multiprocessors)]

    assert {name.split("h")[0] for name in names} == {"2", "32"}
    tokens = [int(name.rpartition("x")[2]) for name in names]
    assert min(tokens) <= 1024 and max(tokens) >= 2048


def test_candidates_that_have_no_code_are_counted_and_their_spills_shown(tmp_path: Path) -> None:
    made = compiled(reasons={1: "needs 254208 bytes of shared memory, h200 allows 232448"})

    report = run(made, FakeMeasure(), tmp_path / "h200.json")

    entry = entry_of(tmp_path / "h200.json", made, "scan")
    assert entry.trials[1].rejected.startswith("needs 254208 bytes")
    assert entry.trials[0].spill_bytes == 0
    assert "1/3" in str(report)


def test_the_table_shows_winner_default_and_gain(made: CompiledCandidates, tmp_path: Path) -> None:
    best = offered(made, "scan")[1]

    report = run(made, FakeMeasure(times={("scan", best): 5.0}), tmp_path / "h200.json")

    row = next(line for line in str(report).splitlines() if line.startswith("scan 16x16 walk"))
    assert "15.0" in row and "20.0" in row and "1.333" in row
    assert f"not the default but: {best} " in " ".join(str(report).split())


def test_a_report_fits_a_terminal_and_is_json_too(made: CompiledCandidates, tmp_path: Path) -> None:
    best = offered(made, "scan")[1]

    report = run(made, FakeMeasure(times={("scan", best): 5.0}), tmp_path / "h200.json")

    data = json.loads(json.dumps(report.to_json()))
    scan = next(row for row in data["launches"] if row["kernel"] == "scan")
    assert (scan["winner"], scan["default_us"]) == (best.to_json(), pytest.approx(20.0))
    assert data["path"] == str(tmp_path / "h200.json")
    own = [line for line in str(report).splitlines() if str(tmp_path) not in line]
    assert max(map(len, own)) <= 80


def test_a_second_run_measures_nothing_again(made: CompiledCandidates, tmp_path: Path) -> None:
    first = run(made, FakeMeasure(), tmp_path / "h200.json")
    measure = FakeMeasure()

    second = run(made, measure, tmp_path / "h200.json")

    assert first.fresh > 0 and (second.fresh, measure.timed) == (0, [])
    assert not (tmp_path / "h200.json.journal").exists()


def test_a_candidate_more_is_another_list_and_measured(tmp_path: Path) -> None:
    run(compiled(most=2), FakeMeasure(), tmp_path / "h200.json")

    again = run(compiled(most=3), FakeMeasure(), tmp_path / "h200.json")

    assert again.fresh > 0 and not again.left


def test_the_budget_is_kept_and_the_next_run_goes_on(
    made: CompiledCandidates, tmp_path: Path
) -> None:
    ticks = iter(range(1000))
    clock = Clock(budget_s=6, now=lambda: float(next(ticks)))

    stopped = run(made, FakeMeasure(), tmp_path / "h200.json", clock)
    rest = run(made, FakeMeasure(), tmp_path / "h200.json")

    assert 0 < stopped.fresh <= 6 and stopped.left
    assert not rest.left and rest.reused >= stopped.fresh
    whole = run(made, FakeMeasure(), tmp_path / "other.json")
    assert stopped.fresh + rest.fresh == whole.fresh


def test_progress_counts_what_is_done_failed_and_left(
    made: CompiledCandidates, tmp_path: Path
) -> None:
    seen: list[Progress] = []
    faults = {("scan", offered(made, "scan")[1]): nan_in_one_row}

    tune(made, FakeMeasure(faults=faults), SESSION, tmp_path / "r.json", on_progress=seen.append)

    assert [p.done for p in seen] == sorted(p.done for p in seen)
    assert seen[-1].done == seen[-1].total and seen[-1].failed > 0
    assert str(seen[0]).startswith("measured 1/")


def test_a_lost_device_ends_the_run_and_the_next_leaves_the_culprit_out(
    made: CompiledCandidates, tmp_path: Path
) -> None:
    culprit = offered(made, "scan")[1]
    measure = FakeMeasure(faults={("scan", culprit): a_crash}, lost=True)
    with pytest.raises(HostError, match="left the GPU unusable"):
        run(made, measure, tmp_path / "h200.json")

    run(made, FakeMeasure(), tmp_path / "h200.json")

    trial = entry_of(tmp_path / "h200.json", made, "scan").trial(culprit)
    assert trial is not None and "illegal memory access" in trial.rejected


KILLED = """
import os, signal, sys
from pathlib import Path
import ssd_aot.sources.batches, ssd_aot.tuning.workloads
from tuning_builders import SESSION, FakeMeasure, compiled
from ssd_aot.tuning.tuner import tune

ssd_aot.sources.batches.LONGEST_TOKENS = 90
ssd_aot.tuning.workloads.MOST_SETS = 1

class Killed(FakeMeasure):
    def median_us(self, executor, scans):
        if len(self.timed) == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().median_us(executor, scans)

tune(compiled(), Killed(), SESSION, Path(sys.argv[1]))
"""


def test_a_killed_run_loses_no_measured_candidate(made: CompiledCandidates, tmp_path: Path) -> None:
    out = tmp_path / "h200.json"
    environment = {**os.environ, "PYTHONPATH": f"{TESTS}:{TESTS.parent}"}
    killed = subprocess.run([sys.executable, "-c", KILLED, str(out)], env=environment)
    assert killed.returncode == -signal.SIGKILL
    with (tmp_path / "h200.json.journal").open("a") as journal:
        journal.write('{"basis": "cut sho')
    # Three workloads each: two candidates were timed, and the third was not.
    rest, whole = FakeMeasure(), FakeMeasure()

    resumed = run(made, rest, out)
    complete = run(made, whole, tmp_path / "whole.json")

    assert resumed.fresh == complete.fresh - 2
    assert read_record(out) == read_record(tmp_path / "whole.json")


def test_a_record_of_another_gpu_is_not_extended(made: CompiledCandidates, tmp_path: Path) -> None:
    run(compiled(gpu=target("h100")), FakeMeasure(), tmp_path / "h100.json")

    with pytest.raises(UsageError, match="another GPU's"):
        run(made, FakeMeasure(), tmp_path / "h100.json")


def test_the_form_rule_follows_what_was_timed() -> None:
    few = [FormPoint("64x128 bf16", 16, 1, 4096, 400.0, 100.0, "")]
    many = [FormPoint("64x128 bf16", 16, n, 4096, 100.0, 130.0, "") for n in (12, 24)]

    rule = form_rule([*few, *many], 132)

    assert rule is not None and rule.walk_programs == 132
    assert form_rule([], 132) is None


def test_a_form_of_fewer_launches_wins_where_launching_is_what_takes_long() -> None:
    short = FormPoint("64x128 bf16", 16, 1, 512, 16.0, 10.0, "")
    long = FormPoint("64x128 bf16", 16, 1, 1024, 40.0, 30.0, "")

    rule = form_rule([short, long], 132)

    assert rule is not None and rule.walk_tokens == 512


def test_the_record_keeps_the_times_of_both_forms(made: CompiledCandidates, tmp_path: Path) -> None:
    run(made, FakeMeasure(), tmp_path / "h200.json")

    forms = read_record(tmp_path / "h200.json").forms

    assert forms and all(point.geometry == "16x16 fp32" for point in forms)
    assert {(p.walk_us, p.segments_us) for p in forms} == {(20.0, 30.0)}


def test_compiled_candidates_come_back_as_they_were_written(
    made: CompiledCandidates, tmp_path: Path
) -> None:
    again = CompiledCandidates.read(made.write(tmp_path).parent)

    assert again == made


def test_the_same_candidates_make_the_same_file(made: CompiledCandidates, tmp_path: Path) -> None:
    first = made.write(tmp_path / "a").read_bytes()

    assert made.write(tmp_path / "b").read_bytes() == first


def test_a_damaged_file_of_candidates_is_refused(made: CompiledCandidates, tmp_path: Path) -> None:
    path = made.write(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])

    with pytest.raises(BundleError, match="cannot be read"):
        CompiledCandidates.read(tmp_path)


def test_measuring_what_was_compiled_elsewhere_needs_no_triton() -> None:
    code = """
import sys
sys.modules["triton"] = None
import ssd_aot.tuning.tuner, ssd_aot.tuning.device_measuring, ssd_aot.tuning.compiled_candidates
assert "ssd_aot.triton_compat" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=TESTS.parent)


def test_the_command_measures_what_was_compiled_elsewhere_without_triton_and_wants_the_gpu(
    made: CompiledCandidates, tmp_path: Path
) -> None:
    made.write(tmp_path)
    code = f"""
import sys
sys.modules["triton"] = None
from ssd_aot.cli import main
main(["tune", "--compiled", {str(tmp_path)!r}, "--out", {str(tmp_path / "r.json")!r}])
"""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}

    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=TESTS.parent, env=environment, text=True,
        capture_output=True,
    )  # fmt: skip

    assert ended.returncode == 3
    assert "tuning for h200 needs that GPU" in ended.stderr


def test_the_command_merges_two_records(made: CompiledCandidates, tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("a.json", "b.json")]
    for path in paths:
        run(made, FakeMeasure(), Path(path))

    result = CliRunner().invoke(
        main, ["tune", "--merge", *paths, "--out", str(tmp_path / "c.json")]
    )

    assert result.exit_code == 0, result.output
    assert read_record(tmp_path / "c.json") == read_record(Path(paths[0]))


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1.5h", 5400), ("30", 30), (None, None)]
)
def test_a_budget_is_a_number_and_a_unit(text: str | None, seconds: float | None) -> None:
    assert read_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "ten", "10x", "m"])
def test_a_budget_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a time"):
        read_seconds(text)
