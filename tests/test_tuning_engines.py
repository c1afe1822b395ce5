"""An engine's own kernels, tuned: right before fast, remembered by kernel and tuning key, and
taken by a build that measures nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_tuning_builders import (
    VERSION,
    FakeEngineMeasure,
    Planned,
    block,
    entry_of,
    few_and_short,
    plan,
    pruned_at,
    session,
    tried,
    tune,
)
from tuning_builders import FAULTS, Fault, a_crash, nan_in_one_row

from ssd_aot.errors import UsageError
from ssd_aot.tuning.attempts import Clock, DeviceLost
from ssd_aot.tuning.poison import PoisonedMemory
from ssd_aot.tuning.record_text import read_record, record_at
from ssd_aot.tuning.records import Trial

PRUNED = "fixture_engine.operation:pruned"


@pytest.fixture(autouse=True)
def short_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    few_and_short(monkeypatch)


@pytest.fixture(scope="module")
def two_kernels(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    """`copied` and `pruned` tuned for 32, two candidates each."""
    return plan(tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def two_keys(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    """One launch of `pruned`, tuned for 65 and for 67, three candidates each."""
    return plan(tmp_path_factory.mktemp("keys"), pruned_at(65, 67))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "h200.vllm.json"


# Right before fast


@pytest.mark.parametrize(("fault", "reason"), FAULTS)
def test_the_fastest_candidate_does_not_win_when_it_is_wrong(
    two_keys: Planned, out: Path, fault: Fault, reason: str
) -> None:
    wrong = ("pruned", 65, 32)
    measure = FakeEngineMeasure({wrong: 1.0, ("pruned", 65, 64): 5.0}, {wrong: fault})

    report = tune(two_keys, measure, out)

    entry = entry_of(out, two_keys, "pruned", 65)
    rejected = next(trial for trial in entry.trials if block(trial.configuration) == 32)
    assert block(entry.winner) == 64
    assert reason in rejected.rejected and not rejected.times_us
    assert "1/3" in str(report)
    kept = entry.trial(entry.winner)
    assert kept is not None and kept.error is not None and kept.error < 6e-3


def test_a_candidate_that_leaves_the_device_unusable_is_out_and_the_run_ends(
    two_keys: Planned, out: Path
) -> None:
    crash = ("pruned", 65, 32)

    with pytest.raises(DeviceLost, match="unusable") as caught:
        tune(two_keys, FakeEngineMeasure(faults={crash: a_crash}, lost=True), out)
    again = FakeEngineMeasure(faults={crash: a_crash})
    tune(two_keys, again, out)

    assert "BLOCK=32" in caught.value.where
    assert not any(crash in chosen for chosen in again.judged)
    assert block(entry_of(out, two_keys, "pruned", 65).winner) == 16


def test_within_the_noise_the_engines_earlier_candidate_wins(two_keys: Planned, out: Path) -> None:
    tune(two_keys, FakeEngineMeasure({("pruned", 65, 64): 9.9}), out)

    assert block(entry_of(out, two_keys, "pruned", 65).winner) == 16


def test_a_candidate_that_does_not_fit_is_told_of_and_never_run(
    two_keys: Planned, out: Path
) -> None:
    first, *others = two_keys.groups
    refused = Trial(first.group.candidates[2], rejected="needs 300000 bytes of shared memory")
    lean = replace(first, usable=first.usable[:2], unusable=(refused,))
    measure = FakeEngineMeasure({("pruned", 65, 64): 1.0})

    tune(Planned((lean, *others), ()), measure, out)

    entry = entry_of(out, two_keys, "pruned", 65)
    assert (len(entry.trials), block(entry.winner)) == (3, 16)
    assert entry.trials[2] == refused
    assert not any(("pruned", 65, 64) in chosen for chosen in measure.judged)


def test_a_kernel_is_not_blamed_for_another_whose_default_is_wrong(
    two_kernels: Planned, out: Path
) -> None:
    wrong = ("pruned", 32, 16)
    measure = FakeEngineMeasure({("copied", 32, 32): 5.0}, {wrong: nan_in_one_row})

    tune(two_kernels, measure, out)

    copied, pruned = (entry_of(out, two_kernels, name, 32) for name in ("copied", "pruned"))
    assert block(copied.winner) == 32
    assert block(pruned.winner) == 32
    assert [bool(trial.rejected) for trial in copied.trials + pruned.trials] == [
        False, False, True, False,
    ]  # fmt: skip


def test_new_memory_holds_nan_where_a_kernel_might_leave_it_unwritten() -> None:
    with PoisonedMemory():  # type: ignore[no-untyped-call]
        made = [torch.empty(3), torch.empty_like(torch.ones(2)), torch.ones(2).new_empty(4)]
        whole = [torch.zeros(3), torch.empty(3, dtype=torch.int32)]

    assert all(tensor.isnan().all() for tensor in made)
    assert not any(tensor.isnan().any() for tensor in whole)


# What is measured, and once


def test_each_group_runs_with_the_winners_so_far(two_kernels: Planned, out: Path) -> None:
    measure = FakeEngineMeasure({("copied", 32, 32): 5.0, ("pruned", 32, 32): 5.0})

    tune(two_kernels, measure, out)

    assert [tried(one.group, one.group.candidates[0])[0] for one in two_kernels.groups] == [
        "copied", "pruned",
    ]  # fmt: skip
    assert set(measure.timed[0]) == {("copied", 32, 16), ("pruned", 32, 16)}
    assert set(measure.timed[-1]) == {("copied", 32, 32), ("pruned", 32, 32)}


def both_dtypes(op: Any, s: Any) -> None:
    """One kernel tuned for one size under two dtypes of its input."""
    for dtype in (torch.float16, torch.float32):
        op.pruned[(1,)](op.meta(65, dtype=dtype), op.meta(65), 65)


def test_keys_that_differ_in_dtypes_follow_the_first_and_keep_their_own_entries(
    tmp_path: Path, out: Path
) -> None:
    planned = plan(tmp_path, both_dtypes)
    measure = FakeEngineMeasure({("pruned", 65, 32): 7.0, ("pruned", 65, 64): 5.0})

    report = tune(planned, measure, out)

    lead, follower = (read_record(out).entry_of(one.group.identity) for one in planned.groups)
    assert lead is not None and "torch.float32" in lead.tuning
    assert follower is not None and "torch.float16" in follower.tuning
    assert [block(trial.configuration) for trial in lead.trials] == [16, 32, 64]
    assert [block(trial.configuration) for trial in follower.trials] == [16, 64]
    assert (block(lead.winner), block(follower.winner), report.fresh) == (64, 64, 5)


def test_what_follows_takes_the_next_best_where_the_firsts_winner_is_wrong_for_it(
    tmp_path: Path, out: Path
) -> None:
    planned = plan(tmp_path, both_dtypes)
    follower = planned.groups[1].group

    def spoil(output: torch.Tensor, calls: int) -> None:
        if block(measure.choices[follower]) == 64:
            nan_in_one_row(output, calls)

    best = ("pruned", 65, 64)
    measure = FakeEngineMeasure({("pruned", 65, 32): 7.0, best: 5.0}, {best: spoil})
    tune(planned, measure, out)

    entry = read_record(out).entry_of(follower.identity)
    assert entry is not None and block(entry.winner) == 32
    assert [bool(trial.rejected) for trial in entry.trials] == [False, False, True]


def test_a_group_that_no_batch_reaches_is_left_to_its_default(tmp_path: Path) -> None:
    planned = plan(tmp_path, pruned_at(65, 67), served=pruned_at(65))

    assert [tried(one.group, one.group.candidates[0])[1] for one in planned.groups] == [65]
    assert [tried(group, group.candidates[0])[1] for group in planned.apart] == [67]


@pytest.mark.parametrize("calls", [1, 7, 40])
def test_a_killed_run_measures_nothing_twice(two_keys: Planned, out: Path, calls: int) -> None:
    def end(measure: FakeEngineMeasure) -> None:
        if len(measure.judged) + len(measure.timed) == calls:
            raise KeyboardInterrupt

    killed = FakeEngineMeasure({("pruned", 67, 64): 5.0}, before=end)
    with pytest.raises(KeyboardInterrupt):
        tune(two_keys, killed, out)
    whole = FakeEngineMeasure({("pruned", 67, 64): 5.0})
    report = tune(two_keys, whole, out)

    assert report.fresh + report.reused == 6
    settled = read_record(out)
    third = FakeEngineMeasure()
    assert tune(two_keys, third, out).fresh == 0
    assert not third.judged and not third.timed
    assert read_record(out) == settled
    assert block(entry_of(out, two_keys, "pruned", 67).winner) == 64
    assert not out.with_name(out.name + ".journal").exists()


def test_each_measured_candidate_is_on_disk_before_the_next(two_keys: Planned, out: Path) -> None:
    journal = out.with_name(out.name + ".journal")
    lines: list[int] = []

    def look(measure: FakeEngineMeasure) -> None:
        if len(measure.judged) % 12 == 0 and journal.exists():
            lines.append(journal.read_text().count('"trial"'))

    tune(two_keys, FakeEngineMeasure(before=look), out)

    assert lines == sorted(lines) and {1, 2} <= set(lines)


def test_a_spent_budget_leaves_the_rest_to_the_next_run(two_keys: Planned, out: Path) -> None:
    ticks = iter(range(1000))

    first = tune(two_keys, FakeEngineMeasure(), out, clock=Clock(5, now=lambda: next(ticks)))
    second = tune(two_keys, FakeEngineMeasure(), out)

    assert 0 < first.fresh < 6 and first.left
    assert "run again to go on" in str(first)
    assert not second.left and first.fresh + second.fresh == 6


@pytest.mark.parametrize(
    ("engine", "made_in", "fresh"),
    [
        (VERSION, session(), 0),
        (VERSION, session(date="2027-01-01T00:00:00Z", driver="999"), 0),
        ("0.0.2", session(), 6),
        (VERSION, session(device="NVIDIA H200 NVL"), 6),
        (VERSION, replace(session(), ptxas_version="other"), 6),
    ],
)
def test_what_was_measured_on_another_basis_is_measured_again(
    two_keys: Planned, out: Path, engine: str, made_in: Any, fresh: int
) -> None:
    tune(two_keys, FakeEngineMeasure(), out)

    assert tune(two_keys, FakeEngineMeasure(), out, engine=engine, made_in=made_in).fresh == fresh


def test_a_record_of_another_gpu_or_source_is_not_extended(two_keys: Planned, out: Path) -> None:
    tune(two_keys, FakeEngineMeasure(), out)

    for gpu, source in (("h100", "vllm"), ("h200", "sglang")):
        with pytest.raises(UsageError, match="another's"):
            record_at(out, gpu, source)
