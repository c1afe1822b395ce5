"""What a build takes from the record of an engine's tuning, and tuning from the command line to a
bundle."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import ssd_aot
from engine_bundles import ONE_MODEL, build, installed
from engine_tuning_builders import (
    H200,
    VERSION,
    FakeEngineMeasure,
    Planned,
    block,
    entry_of,
    few_and_short,
    of_file,
    plan,
    pruned_at,
    session,
    tune,
)
from spec_builders import write_spec

from ssd_aot.bundle.manifest import Tuning
from ssd_aot.bundle.store import Bundle
from ssd_aot.compilation.calling import WorkerGone
from ssd_aot.engines import tuning_process
from ssd_aot.errors import HostError, UsageError
from ssd_aot.spec import load_spec
from ssd_aot.tuning.attempts import DeviceLost
from ssd_aot.tuning.choices import RecordFile
from ssd_aot.tuning.record_text import from_text, read_record, to_text

PRUNED = "fixture_engine.operation:pruned"


@pytest.fixture(autouse=True)
def short_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    few_and_short(monkeypatch)


@pytest.fixture(scope="module")
def two_keys(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    """One launch of `pruned`, tuned for 65 and for 67, three candidates each."""
    return plan(tmp_path_factory.mktemp("keys"), pruned_at(65, 67))


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "h200.vllm.json"


def results(bundle: Bundle) -> dict[int, tuple[int, Any]]:
    """(BLOCK, milliseconds) that each stored tuning of `pruned` names, by the size it is for."""
    assert bundle.manifest.triton is not None
    found = {}
    for tuning in (t for t in bundle.manifest.triton.tunings if t.kernel == PRUNED):
        content = json.loads((bundle.path / tuning.path).read_text())
        ((config, times),) = content["configs_timings"]
        found[content["key"][0]] = (config["kwargs"]["BLOCK"], times)
    return found


def test_several_launches_of_one_key_are_judged_and_chosen_for_together(
    tmp_path: Path, out: Path
) -> None:
    def both(op: Any, s: Any) -> None:
        pruned_at(32)(op, s)
        pruned_at(32, offset=4)(op, s)

    planned = plan(tmp_path, both)
    tune(planned, FakeEngineMeasure({("pruned", 32, 32): 5.0}), out)

    (one,) = planned.groups
    entry = entry_of(out, planned, "pruned", 32)
    assert len(one.group.launches) == len(entry.judged) == 2
    report = build(tmp_path / "b", ONE_MODEL, calls=both, records=[of_file(out)])
    taken = [(block(e.configuration), e.tuning.checked) for e in report.manifest.variants]
    assert taken == [(32, True)] * 2


def test_a_winner_is_checked_in_those_launches_in_which_it_was_judged(
    tmp_path: Path, out: Path
) -> None:
    def both(op: Any, s: Any) -> None:
        pruned_at(32)(op, s)
        pruned_at(32, offset=4)(op, s)

    planned = plan(tmp_path, pruned_at(32))
    tune(planned, FakeEngineMeasure({("pruned", 32, 32): 5.0}), out)
    (judged,) = entry_of(out, planned, "pruned", 32).judged

    report = build(tmp_path / "b", ONE_MODEL, calls=both, records=[of_file(out)])

    assert len(report.manifest.variants) == 2
    for entry in report.manifest.variants:
        assert (block(entry.configuration), entry.tuning.status) == (32, "measured")
        assert entry.tuning.checked == (entry.launch.identity == judged)


def test_the_tuning_keys_of_one_launch_keep_their_own_winners_to_the_bundles_results(
    two_keys: Planned, tmp_path: Path, out: Path
) -> None:
    measure = FakeEngineMeasure({("pruned", 65, 32): 5.0, ("pruned", 67, 64): 6.0})
    tune(two_keys, measure, out)
    launches = {t.captured.launch for one in two_keys.groups for t in one.group.launches}
    assert len(launches) == 1

    report = build(
        tmp_path / "b", ONE_MODEL, calls=pruned_at(65, 67), records=[of_file(out)],
        require_tuned=True,
    )  # fmt: skip

    # 65's winner ran beside 67's default, and 67's beside 65's winner.
    assert results(Bundle.open(tmp_path / "b")) == {65: (32, [0.015] * 3), 67: (64, [0.011] * 3)}
    assert {(block(e.configuration), e.tuning) for e in report.manifest.variants} == {
        (32, Tuning("measured", True, 15.0, 20.0)), (64, Tuning("measured", True, 11.0, 15.0)),
    }  # fmt: skip
    assert report.records == ((str(out), 2),)


@pytest.mark.parametrize(
    ("gpu", "changes", "status"),
    [
        ("h100", {}, "borrowed from h100"),
        ("h200", {"engine": "0.0.2"}, "borrowed from h200 (other engine version)"),
        ("h200", {"source": "0" * 64}, "borrowed from h200 (other kernel sources)"),
        ("h200", {"offered": "0" * 64}, "borrowed from h200 (other candidate list)"),
        ("h200", {"session": replace(session(), triton_content="0" * 64, ptxas_version="13.0")},
         "borrowed from h200 (other Triton, ptxas)"),
        ("b200", {}, "default"),
    ],
)  # fmt: skip
def test_what_was_measured_on_something_else_is_borrowed_and_says_from_what(
    two_keys: Planned, tmp_path: Path, gpu: str, changes: dict[str, Any], status: str
) -> None:
    """C33, C44."""
    path = tmp_path / f"{gpu}.json"
    tune(two_keys, FakeEngineMeasure({("pruned", 65, 32): 5.0}), path, gpu=gpu)
    group = next(one.group for one in two_keys.groups)
    chosen = choose(group, of_file(path, **changes))

    assert chosen.tuning == Tuning(status, checked=False)
    assert block(chosen.configuration) == (16 if status == "default" else 32)


def choose(group: Any, *records: RecordFile, pin: str = "") -> Any:
    from ssd_aot.engines.building import choose as choose_all

    folder = records[0].path.parent
    spec = load_spec([write_spec(folder, ONE_MODEL + pin)])
    ((chosen, *_),) = choose_all(spec, H200, group.launches, records, VERSION).values()
    return chosen


def test_a_pin_overrides_what_was_measured(two_keys: Planned, out: Path) -> None:
    tune(two_keys, FakeEngineMeasure({("pruned", 65, 32): 5.0}), out)

    chosen = choose(two_keys.groups[0].group, of_file(out), pin="pin: {pruned: {BLOCK: 64}}\n")

    assert (block(chosen.configuration), chosen.tuning.status) == (64, "pinned")


def test_a_record_keeps_what_its_entries_are_for_in_its_text(two_keys: Planned, out: Path) -> None:
    tune(two_keys, FakeEngineMeasure(), out)

    text = out.read_text()
    made = from_text(text, "record")

    assert to_text(made) == text
    assert {json.loads(entry.tuning)[0] for entry in made.entries} == {65, 67}
    assert {entry.engine for entry in made.entries} == {VERSION}
    assert all(entry.judged and entry.kernel == PRUNED for entry in made.entries)


# From the command line to a bundle


class OwnProcess:
    """A worker that is this process, its GPU a fake one. `ends` makes its first calls raise."""

    name = "GPU 0"

    def __init__(self, measure: FakeEngineMeasure, ends: list[Exception]) -> None:
        self._measure, self._ends = measure, ends

    def call(self, function: Callable[..., Any], *arguments: Any, limit_s: Any = None) -> Any:
        if self._ends:
            raise self._ends.pop()
        return function(*arguments)

    def close(self) -> None: ...


@pytest.fixture
def gpu_here(monkeypatch: pytest.MonkeyPatch) -> FakeEngineMeasure:
    """An H200 in this host, as far as the tuner can tell."""
    measure = FakeEngineMeasure({("pruned", 32, 32): 5.0})
    measure.name = "NVIDIA H200"  # type: ignore[attr-defined]
    monkeypatch.setattr(tuning_process, "check_device", lambda *_: None)
    monkeypatch.setattr(tuning_process, "gpus_here", lambda *_: (0,))
    monkeypatch.setattr(tuning_process, "driver_version", lambda: "570.1")
    monkeypatch.setattr(tuning_process, "EngineDevice", lambda *_: measure)
    monkeypatch.setattr(tuning_process, "SpawnedWorker", lambda name: OwnProcess(measure, []))
    return measure


def test_tune_compiles_all_candidates_measures_them_and_a_build_takes_the_winners(
    gpu_here: FakeEngineMeasure, tmp_path: Path, out: Path
) -> None:
    spec = write_spec(tmp_path, ONE_MODEL + "pin: {pruned: {BLOCK: 16}}\n")
    with installed():
        ended = ssd_aot("tune", "--gpu", "h200", "--spec", spec, "--out", out, "--json")

    assert ended.exit_code == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert (told["fresh"], told["left"], told["path"]) == (4, [], str(out))
    winners = {launch["kernel"]: launch["winner"]["BLOCK"] for launch in told["launches"]}
    assert winners[PRUNED] == 32, "a pin is the build's"
    assert read_record(out).entries[0].trials[0].registers is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == [out.name, "spec.yaml"]

    unpinned = write_spec(tmp_path, ONE_MODEL)
    with installed():
        built = ssd_aot(
            "build", "--gpu", "h200", "--spec", unpinned, "--out", tmp_path / "b", "--tuning", out,
            "--require-tuned",
        )  # fmt: skip
    assert built.exit_code == 0, built.stderr
    assert results(Bundle.open(tmp_path / "b")) == {32: (32, [0.015] * 3)}


def test_candidates_compiled_elsewhere_are_measured_without_a_spec(
    gpu_here: FakeEngineMeasure, tmp_path: Path, out: Path
) -> None:
    spec = write_spec(tmp_path, ONE_MODEL)
    with installed():
        compiled = ssd_aot(
            "tune", "--gpu", "h200", "--spec", spec, "--compile-only", tmp_path / "c", "--json"
        )
        ended = ssd_aot("tune", "--compiled", tmp_path / "c", "--out", out)

    assert compiled.exit_code == 0, compiled.stderr
    assert json.loads(compiled.stdout)["candidates"] == 9
    assert ended.exit_code == 0, ended.stderr
    assert "2 launches settled, 4 trials measured" in ended.stdout
    assert (tmp_path / "c" / "manifest.json").exists()


def test_a_bundle_with_choices_made_holds_no_candidates_to_measure(
    engine_bundle: Path, out: Path
) -> None:
    with installed():
        ended = ssd_aot("tune", "--compiled", engine_bundle, "--out", out)

    assert ended.exit_code == 2
    assert "with choices made" in ended.stderr and "--tune-at-serve" in ended.stderr


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--workers", "ray"), "an engine's kernels are tuned on this host"),
        (("--device", "0", "--device", "1"), "tuned on one GPU"),
    ],
)
def test_what_cannot_be_tuned_is_refused(
    options: tuple[str, ...],
    complaint: str,
    tmp_path: Path,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ssd_aot.sources.require_source", lambda *_: None)
    spec = write_spec(tmp_path, ONE_MODEL.replace("[false]", "[true]"))

    ended = ssd_aot("tune", "--gpu", "h200", "--spec", spec, "--out", out, *options)

    assert ended.exit_code == 2, ended.stderr
    assert complaint in ended.stderr


def test_what_is_no_engine_has_no_kernels_that_can_be_tuned_as_one() -> None:
    with pytest.raises(UsageError, match="cannot be tuned"):
        tuning_process.require_measured("recording", "dist")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_the_gpu_nothing_is_compiled(tmp_path: Path, out: Path) -> None:
    spec = write_spec(tmp_path, ONE_MODEL)

    with installed():
        ended = ssd_aot("tune", "--gpu", "h200", "--spec", spec, "--out", out)

    assert ended.exit_code == 3
    assert "tuning for h200 needs that GPU" in ended.stderr
    assert list(tmp_path.iterdir()) == [spec]


def of_process(planned: Planned, folder: Path) -> tuning_process.EngineTuning:
    return tuning_process.EngineTuning("vllm", VERSION, H200, planned.groups, (), folder)


def test_another_process_goes_on_where_a_candidate_or_somebody_ended_one(
    gpu_here: FakeEngineMeasure, two_keys: Planned, tmp_path: Path, out: Path
) -> None:
    ends: list[Exception] = [
        WorkerGone("was ended by SIGKILL"),
        DeviceLost("lost", found="a crash"),
    ]
    notices: list[str] = []

    report = tuning_process.measure_on_gpu(
        of_process(two_keys, tmp_path), out, on_notice=notices.append,
        hire=lambda name: OwnProcess(gpu_here, ends),
    )  # fmt: skip

    assert not report.left and len(read_record(out).entries) == 2
    assert ["a crash" in notices[0], "SIGKILL" in notices[1]] == [True, True]


def test_a_process_that_ends_again_and_again_ends_the_run(
    gpu_here: FakeEngineMeasure, two_keys: Planned, tmp_path: Path, out: Path
) -> None:
    ends: list[Exception] = [WorkerGone("SIGSEGV")] * 3

    with pytest.raises(HostError, match="again and again"):
        tuning_process.measure_on_gpu(
            of_process(two_keys, tmp_path), out, hire=lambda name: OwnProcess(gpu_here, ends)
        )
