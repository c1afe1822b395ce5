"""Bundles of an engine's kernels: what is in them, that they are the same anywhere, what is refused
and what takes the place of a candidate that fails."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from command_line import ROOT, python, ssd_aot
from engine_bundles import ONE_MODEL, TWO_MODELS, build, installed, of_toolchain, rewritten
from fixture_engine.engine import launched
from spec_builders import write_spec

from ssd_aot.bundle.manifest import Manifest, Source
from ssd_aot.bundle.store import Bundle
from ssd_aot.compilation.compiling import Compiled, CompileResult, CompileTask, DoesNotFit, Failure
from ssd_aot.engines.groups import TuningGroup, tuning_groups
from ssd_aot.engines.rounds import compile_groups
from ssd_aot.engines.tracing import TracedLaunch
from ssd_aot.errors import BuildError, SpecError
from ssd_aot.launches import Configuration, Variant
from ssd_aot.spec import load_spec
from ssd_aot.targets import Target, target
from ssd_aot.triton_compat import CompiledObject, compile_entry, layout_can_be_fixed, toolchain
from ssd_aot.tuning.choices import Chooser, RecordFile
from ssd_aot.tuning.records import (
    Entry,
    Record,
    Session,
    Trial,
    offered_digest,
    tuning_identity,
)

PRUNED, COPIED = "fixture_engine.operation:pruned", "fixture_engine.operation:copied"
H200 = target("h200")


def words(text: str) -> str:
    return " ".join(text.split())


def blocks(manifest: Manifest) -> dict[str, list[Any]]:
    """The BLOCKs in which the autotuned kernel is there, by the class of its size."""
    found: dict[str, list[Any]] = {}
    for entry in manifest.variants:
        if entry.launch.kernel == PRUNED:
            size = next(a.spelled() for a in entry.launch.arguments if a.name == "n")
            found.setdefault(size, []).append(dict(entry.configuration.constexprs)["BLOCK"])
    return {size: sorted(values) for size, values in found.items()}


def results(bundle: Bundle, kernel: str = PRUNED) -> dict[int, tuple[Any, Any]]:
    """(BLOCK, times) that each stored tuning of a kernel names, by the size it is for."""
    found = {}
    assert bundle.manifest.triton is not None
    for tuning in (t for t in bundle.manifest.triton.tunings if t.kernel == kernel):
        content = json.loads((bundle.path / tuning.path).read_text())
        ((config, times),) = content["configs_timings"]
        found[content["key"][0]] = (config["kwargs"]["BLOCK"], times)
    return found


# What is inside


def test_a_bundle_has_each_launch_once_with_code_and_metadata_under_tritons_key(
    engine_bundle: Path,
) -> None:
    bundle = Bundle.open(engine_bundle)
    files = bundle.manifest.triton
    assert files is not None

    assert bundle.check_files() == []
    assert len(files.kernels) == len(bundle.manifest.variants) == 11
    for kernel in files.kernels:
        metadata = json.loads((bundle.path / kernel.files()[f"{kernel.name}.json"]).read_text())
        assert metadata["hash"] == kernel.key
        assert metadata["name"] == kernel.name
    models = {
        (
            entry.launch.kernel.rpartition(":")[2],
            tuple(n.partition("/")[0] for n in entry.signatures),
        )
        for entry in bundle.manifest.variants
    }
    assert {("added", ("even", "odd")), ("strided", ("even",)), ("strided", ("odd",))} <= models


def test_an_autotuned_kernel_is_there_in_the_engines_first_choice_which_a_result_names(
    engine_bundle: Path,
) -> None:
    bundle = Bundle.open(engine_bundle)

    assert blocks(bundle.manifest) == {"i32 %16": [16], "i32 other": [16]}
    assert results(bundle) == {32: (16, None), 33: (16, None)}
    statuses = {e.launch.kernel: e.tuning.status for e in bundle.manifest.variants}
    assert {statuses.pop(PRUNED), statuses.pop(COPIED)} == {"default"}
    assert set(statuses.values()) == {"fixed"}, "where nothing is to be chosen"


def test_the_host_module_is_there_and_the_source_with_its_version_and_hashes(
    engine_bundle: Path,
) -> None:
    manifest = Bundle.open(engine_bundle).manifest
    assert manifest.triton is not None

    assert [module.name for module in manifest.triton.host_modules] == ["cuda_utils"]
    module = engine_bundle / manifest.triton.host_modules[0].path
    assert module.read_bytes()[:4] == b"\x7fELF"
    assert (manifest.source.name, manifest.source.version) == ("vllm", "0.0.1")
    assert {kernel.rpartition(":")[2] for kernel, _ in manifest.source.kernels} == {
        "added", "by_heuristic", "copied", "pruned", "strided", "unspecialised",
    }  # fmt: skip


def test_no_file_holds_a_path_of_the_machine_it_was_built_on(engine_bundle: Path) -> None:
    here = [str(ROOT), str(engine_bundle.parent), sys.prefix, str(Path(torch.__file__).parent),
            str(Path(triton.__file__).parent), "/tmp", "ssd-aot-", str(Path.home())]  # fmt: skip
    unwanted = re.compile("|".join(re.escape(path) for path in here if path != "/").encode())

    for file in engine_bundle.rglob("*"):
        if file.is_file():
            found = unwanted.search(file.read_bytes())
            assert found is None, f"{file.name}: {found}"


@pytest.mark.skipif(not layout_can_be_fixed(), reason="address randomisation stays on here")
def test_a_build_elsewhere_has_the_same_digest(engine_bundle: Path, tmp_path: Path) -> None:
    """C27: another folder, temporary folder, home and hash seed, in a process of its own."""
    folder = tmp_path / "quite" / "another"
    (folder / "tmp").mkdir(parents=True)

    ended = python(
        str(Path(__file__).parent / "engine_bundles.py"),
        "b",
        cwd=folder,
        PYTHONHASHSEED="7",
        TMPDIR=str(folder / "tmp"),
        HOME=str(folder),
    )

    assert ended.returncode == 0, ended.stderr
    assert Bundle.open(folder / "b").digest == Bundle.open(engine_bundle).digest
    assert list((folder / "tmp").iterdir()) == []


def test_a_build_of_what_is_there_leaves_it_as_it_is(engine_bundle: Path) -> None:
    before = (engine_bundle / "manifest.json").stat()

    report = build(engine_bundle)

    assert report.unchanged
    assert "the same again, the bundle is there" in str(report)
    after = (engine_bundle / "manifest.json").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert not engine_bundle.with_name(engine_bundle.name + ".partial").exists()


def test_two_gpus_of_two_architectures_are_in_one_bundle(tmp_path: Path) -> None:
    report = build(tmp_path / "b", ONE_MODEL, gpus=("h200", "b200"))

    files = report.manifest.triton
    assert files is not None
    assert {entry.target for entry in report.manifest.variants} == {"b200", "h200"}
    assert len({kernel.key for kernel in files.kernels}) == len(report.manifest.variants) == 14
    assert {tuning.target for tuning in files.tunings} == {"b200", "h200"}


def test_two_models_of_one_architecture_are_refused(tmp_path: Path) -> None:
    """Triton's keys do not tell them apart."""
    with pytest.raises(SpecError, match="one GPU model an architecture") as caught:
        build(tmp_path / "b", gpus=("h200", "b200", "h100"))

    assert "h200 and h100" in caught.value.found
    assert list(tmp_path.iterdir()) == [tmp_path / "spec.yaml"]


# Which candidate


def test_a_pin_decides_and_is_named_as_one(tmp_path: Path) -> None:
    report = build(tmp_path / "b", TWO_MODELS + "pin: {pruned: {BLOCK: 32}}\n")

    assert blocks(report.manifest) == {"i32 %16": [32], "i32 other": [32]}
    assert {block for block, _ in results(Bundle.open(tmp_path / "b")).values()} == {32}
    assert {e.tuning.status for e in report.manifest.variants if e.launch.kernel == PRUNED} == {
        "pinned"
    }


@pytest.mark.parametrize(
    ("pin", "complaint", "wanted"),
    [
        ("pruned: {BLOCK: 64}", "matches no candidate", "BLOCK=32"),
        ("prunde: {BLOCK: 32}", "names no kernel", "pruned"),
    ],
)
@pytest.mark.parametrize("command", ["build", "plan"])
def test_a_pin_that_cannot_be_met_is_refused_with_its_line(
    command: str, pin: str, complaint: str, wanted: str, tmp_path: Path
) -> None:
    spec = write_spec(tmp_path, TWO_MODELS + f"pin:\n  {pin}\n")
    out = ("--out", tmp_path / "b") if command == "build" else ()

    with installed():
        ended = ssd_aot(command, "--gpu", "h200", "--spec", spec, *out)

    assert ended.exit_code == 2
    assert f"{spec}:8" in ended.stderr
    assert complaint in ended.stderr
    assert wanted in ended.stderr


def measured(captured: Any, best: Configuration, default: Configuration) -> Entry:
    candidates = [c.configuration for c in captured.candidates]
    return Entry(
        identity=tuning_identity(captured.launch.kernel, captured.tuning.tuning_key),
        kernel=captured.launch.kernel,
        launch=str(captured.launch),
        session=Session.of(toolchain(), date="2026-01-02T03:04:05Z", device="d", driver="570.1"),
        source=captured.source_sha256, offered=offered_digest(candidates),
        offered_count=len(candidates), workloads=("w",), default=default, winner=best,
        trials=(Trial(default, (20.0,)), Trial(best, (16.0,))), tuning=captured.tuning.tuning_key,
        engine="0.0.1", judged=(captured.launch.identity,),
    )  # fmt: skip


def test_a_winner_of_a_tuning_record_is_built_and_the_result_names_it_with_its_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (captured,) = launched(monkeypatch, lambda op: op.run_pruned(32))
    default, best = (candidate.configuration for candidate in captured.candidates)
    record = Record("h200", "vllm").with_entries([measured(captured, best, default)])
    monkeypatch.undo()

    build(tmp_path / "b", ONE_MODEL, records=[RecordFile(tmp_path / "r.json", record)])

    bundle = Bundle.open(tmp_path / "b")
    assert results(bundle) == {32: (32, [0.016] * 3)}, "milliseconds, as Triton keeps them"
    (entry,) = (e for e in bundle.manifest.variants if e.launch.kernel == PRUNED)
    assert (entry.tuning.status, entry.tuning.median_us) == ("measured", 16.0)


def test_require_tuned_refuses_what_was_not_measured_before_anything_is_compiled(
    tmp_path: Path,
) -> None:
    with pytest.raises(BuildError, match="not measured on their GPU"):
        build(tmp_path / "b", ONE_MODEL, require_tuned=True)
    assert not (tmp_path / "b").exists()


def test_tuning_at_serve_time_finds_every_candidate_and_no_result(tmp_path: Path) -> None:
    report = build(tmp_path / "b", tune_at_serve=True)

    assert blocks(report.manifest) == {"i32 %16": [16, 32], "i32 other": [16, 32]}
    assert report.manifest.triton is not None
    assert report.manifest.triton.tunings == ()


def test_tuning_at_serve_time_is_asked_for_by_an_option_and_the_bundle_verifies(
    tmp_path: Path,
) -> None:
    out = ("--gpu", "h200", "--spec", write_spec(tmp_path, ONE_MODEL), "--out", tmp_path / "b")

    with installed():
        ended = ssd_aot("build", *out, "--tune-at-serve", "--json")
        verified = ssd_aot("verify", tmp_path / "b")

    assert ended.exit_code == 0, ended.stderr
    assert json.loads(ended.stdout)["variants"] == 9, "7, and a second candidate of two kernels"
    assert verified.exit_code == 0, verified.stdout


def test_builtin_kernels_are_not_tuned_at_serve_time(tmp_path: Path) -> None:
    ended = ssd_aot("build", "--gpu", "h200", "--out", tmp_path / "b", "--tune-at-serve")

    assert ended.exit_code == 2
    assert "--tune-at-serve: builtin kernels have no tuner" in ended.stderr


def failing(*blocks: int, launches: str = "") -> Callable[..., CompiledObject]:
    """`compile_entry` that fails for these BLOCKs, of launches that are spelled so."""

    def compile_or_fail(function: Any, variant: Variant, target: Target, key: str) -> Any:
        block = dict(variant.configuration.constexprs).get("BLOCK")
        if block in blocks and launches in str(variant.launch):
            raise BuildError("the kernel does not compile", found="PTXASError: out of registers")
        return compile_entry(function, variant, target, key)

    return compile_or_fail


def test_a_candidate_that_does_not_compile_gives_way_for_all_that_share_its_tuning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An aligned and an unaligned input are two launches with one tuning result."""
    monkeypatch.setattr(
        "ssd_aot.compilation.compiling.compile_entry",
        failing(16, launches="x_ptr: *bf16 unaligned"),
    )

    report = build(
        tmp_path / "b", ONE_MODEL, calls=lambda op, s: [op.run_pruned_at(32, at) for at in (0, 4)]
    )

    assert blocks(report.manifest) == {"i32 %16": [32, 32]}
    assert results(Bundle.open(tmp_path / "b")) == {32: (32, None)}
    (dropped,) = report.dropped
    assert dropped.startswith(f"{PRUNED} [BLOCK=16")
    assert "out of registers" in dropped


def test_a_launch_without_a_candidate_left_fails_by_name_and_leaves_no_bundle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("ssd_aot.compilation.compiling.compile_entry", failing(16, 32))
        with pytest.raises(BuildError, match="2 launches could not be built") as caught:
            build(tmp_path / "b", ONE_MODEL)
    assert f"{PRUNED}[" in caught.value.found
    assert "out of registers" in caught.value.found
    assert not (tmp_path / "b").exists()

    report = build(tmp_path / "b", ONE_MODEL)
    assert report.manifest.complete
    assert (report.fresh, report.reused) == (2, 5), "what was compiled stays compiled"


def test_an_incomplete_bundle_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("ssd_aot.compilation.compiling.compile_entry", failing(16, 32))
    spec = write_spec(tmp_path, ONE_MODEL)

    with installed():
        ended = ssd_aot(
            "build", "--gpu", "h200", "--spec", spec, "--out", tmp_path / "b", "--keep-going"
        )
        verified = ssd_aot("verify", tmp_path / "b")

    assert ended.exit_code == 1
    assert "failed: " + PRUNED in ended.stderr
    assert verified.exit_code == 1
    assert "a launch that the build could not make" in words(verified.stdout)


# The rounds, on launches that were captured and compilations that are told


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Sequence[TuningGroup]:
    """A kernel with three candidates in two launches, and one of another kernel."""
    captured = launched(
        monkeypatch,
        lambda op: [op.run_pruned_at(64, 0), op.run_pruned_at(64, 4), op.run_strided(3)],
    )
    return tuning_groups([TracedLaunch(launch, ("s",)) for launch in captured])


def choices_of(groups: Sequence[TuningGroup], folder: Path) -> dict[TuningGroup, tuple[Any, ...]]:
    spec = load_spec([write_spec(folder, ONE_MODEL)])
    sources = {g.kernel: g.launches[0].captured.source_sha256 for g in groups}
    chooser = Chooser((), toolchain(), tuple(sources.items()))
    return {group: group.choose(spec, H200, chooser) for group in groups}


class Told:
    """A compilation whose outcomes are told by BLOCK: `unfit`, a reason to fail, or nothing."""

    def __init__(self, outcomes: dict[Any, str]) -> None:
        self._outcomes = outcomes
        self.rounds: list[list[Any]] = []

    def __call__(self, tasks: Sequence[CompileTask]) -> CompileResult:
        self.rounds.append([block_of(task) for task in tasks])
        by_outcome: dict[str, list[CompileTask]] = {}
        for task in tasks:
            by_outcome.setdefault(self._outcomes.get(block_of(task), ""), []).append(task)
        made: Any = object()
        return CompileResult(
            compiled=tuple(Compiled(task, made) for task in by_outcome.pop("", [])),
            unfit=tuple(DoesNotFit(t, 300000, 232448, made) for t in by_outcome.pop("unfit", [])),
            failures=tuple(Failure(t, why) for why, ts in by_outcome.items() for t in ts),
            fresh=len(tasks), reused=0, elapsed_s=1.0, toolchain=toolchain(), reproducible=True,
        )  # fmt: skip


def block_of(task: CompileTask) -> Any:
    return dict(task.variant.configuration.constexprs).get("BLOCK")


def test_what_does_not_fit_gives_way_and_only_that_is_tried_again(
    groups: Sequence[TuningGroup], tmp_path: Path
) -> None:
    compile_tasks = Told({16: "unfit", 32: "Error"})

    rounds = compile_groups(choices_of(groups, tmp_path), H200, compile_tasks)

    assert compile_tasks.rounds == [[16, 16, None], [32, 32], [64, 64]]
    assert sorted(block_of(one.compiled.task) or 0 for one in rounds.built) == [0, 64, 64]
    assert rounds.failures == []
    assert [name.rpartition("]: ")[2] for name in rounds.dropped] == [
        "needs 300000 bytes of shared memory, h200 allows 232448",
        "Error",
    ]
    assert rounds.refused == []
    assert (rounds.fresh, rounds.seconds) == (7, 3.0)


def test_a_group_without_a_candidate_left_fails_once(
    groups: Sequence[TuningGroup], tmp_path: Path
) -> None:
    rounds = compile_groups(
        choices_of(groups, tmp_path), H200, Told({16: "unfit", 32: "unfit", 64: "Error"})
    )

    (failure,) = rounds.failures
    assert failure.startswith(f"{PRUNED}[")
    assert failure.endswith("Error")
    assert [one.group.kernel for one in rounds.built] == ["fixture_engine.operation:strided"]


@pytest.mark.parametrize(
    ("outcomes", "built", "refused", "failed"),
    [
        ({}, [16, 32, 64], [], 0),
        ({16: "Error"}, [32, 64], [], 0),
        ({16: "unfit", 64: "Error"}, [32], [16], 0),
        ({16: "unfit", 32: "unfit", 64: "Error"}, [], [16, 32], 1),
    ],
)
def test_for_tuning_at_serve_time_all_candidates_are_kept_and_one_has_to_fit(
    outcomes: dict[Any, str],
    built: list[int],
    refused: list[int],
    failed: int,
    groups: Sequence[TuningGroup],
    tmp_path: Path,
) -> None:
    """One that does not fit is kept as well, for Triton to refuse as it would its own."""
    compile_tasks = Told(outcomes)

    rounds = compile_groups(choices_of(groups, tmp_path), H200, compile_tasks, every_candidate=True)

    assert len(compile_tasks.rounds) == 1
    assert sorted({block_of(one.compiled.task) or 0 for one in rounds.built}) == [0, *built]
    assert sorted({block_of(one.compiled.task) for one in rounds.refused}) == refused
    assert len(rounds.failures) == failed


def test_a_tuning_that_triton_cannot_store_keeps_its_candidates_and_the_build_says_why(
    tmp_path: Path,
) -> None:
    """C57: a candidate with a pre_hook."""
    report = build(tmp_path / "b", ONE_MODEL, calls=lambda op, signature: op.run_hooked())

    built = {dict(e.configuration.constexprs)["BLOCK"] for e in report.manifest.variants}
    assert built == {16, 32}
    assert report.manifest.triton is not None
    assert report.manifest.triton.tunings == ()
    (note,) = report.notes
    assert "hooked is tuned at its first launch" in note
    assert "pre_hook" in note


# Plan, verify, and what is not here


def test_the_plan_shows_the_engines_launches_with_their_candidates(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, TWO_MODELS)

    with installed():
        ended = ssd_aot("plan", "--gpu", "h200", "--spec", spec, "--json")

    planned = json.loads(ended.stdout)
    assert planned["variants"] == 11
    sizes = {
        launch["arguments"]["n"]: [c["BLOCK"] for c in launch["candidates"]]
        for launch in planned["launches"]
        if launch["kernel"] == PRUNED
    }
    assert sizes == {"i32 %16": [16, 32], "i32 other": [16, 32]}


def test_signatures_that_the_engine_never_calls_with_exit_2(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, TWO_MODELS.replace("[false]", "[true]"))

    with installed():
        ended = ssd_aot("build", "--gpu", "h200", "--spec", spec, "--out", tmp_path / "b")

    assert ended.exit_code == 2
    assert "the fixture makes batches alone" in ended.stderr


def test_what_was_built_verifies_against_the_engine_here(engine_bundle: Path) -> None:
    with installed():
        ended = ssd_aot("verify", engine_bundle)

    assert ended.exit_code == 0, ended.stdout
    assert "checked against the launches that the spec needs" in words(ended.stdout)
    assert "ok host" in words(ended.stdout)


def test_without_the_engine_the_bundles_own_list_is_checked(engine_bundle: Path) -> None:
    ended = ssd_aot("verify", engine_bundle)

    assert ended.exit_code == 0, ended.stdout
    assert "checked against the bundle's own list" in words(ended.stdout)


def test_a_kernel_with_another_source_here_fails_by_name(
    engine_bundle: Path, tmp_path: Path
) -> None:
    source = Bundle.open(engine_bundle).manifest.source
    other = tuple((k, "0" * 64 if k == PRUNED else hash_) for k, hash_ in source.kernels)
    changed = rewritten(
        engine_bundle, tmp_path / "b", source=Source(source.name, source.version, other)
    )

    with installed():
        ended = ssd_aot("verify", changed)

    assert ended.exit_code == 1
    assert f"{PRUNED} has another source here than 0.0.1 had" in words(ended.stdout)


def test_a_launch_that_the_engine_here_makes_and_the_bundle_lacks_fails_by_name(
    engine_bundle: Path,
) -> None:
    with installed(lambda op, signature: op.run_strided(1)):
        ended = ssd_aot("verify", engine_bundle)

    assert ended.exit_code == 1
    assert "a launch of fixture_engine.operation:strided is missing for h200" in words(ended.stdout)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("triton_content", "0" * 64),
        ("ptxas_version", "ptxas 11.0.1, ptxas-blackwell 11.0.1"),
        ("python_abi", "cpython-310-x86_64-linux-gnu"),
        ("platform", "linux-aarch64"),
        ("environment", (("DISABLE_LLVM_OPT", "1"),)),
    ],
)
def test_verify_fails_where_load_would_refuse(
    field: str, value: Any, engine_bundle: Path, tmp_path: Path
) -> None:
    """C29, C30."""
    changed = of_toolchain(engine_bundle, tmp_path / "b", **{field: value})

    ended = ssd_aot("verify", changed)

    assert ended.exit_code == 1
    assert f"toolchain.{field}" in words(ended.stdout)
    assert ended.stdout.count("failed  ") == 1, "each part is told once"
