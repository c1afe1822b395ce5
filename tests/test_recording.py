"""Recordings: what a program's Triton did, written down, built, and served without a compiler."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from command_line import ROOT, command, python, ssd_aot

from ssd_aot.bundle.store import Bundle
from ssd_aot.errors import SpecError
from ssd_aot.launches import Argument, Configuration, Launch
from ssd_aot.recording.gathering import gather
from ssd_aot.recording.program import spec_text
from ssd_aot.recording.recorded import RecordedLaunch, Recording, merged
from ssd_aot.spec import Spec, load_spec

PROGRAM = Path(__file__).parent / "recorded_program"
TESTS = Path(__file__).parent
FIVE = {"tuned", "by_heuristic", "of_a_tuple", "of_a_function", "nested"}


def recorded(out: Path, how: str, *more: str, cache: Path | None = None) -> Any:
    """Record the program; the ended process."""
    own = command("record", "--out", out, "--", sys.executable, PROGRAM / "server.py", how, *more)
    return python(
        *own[1:],
        PYTHONPATH=f"{ROOT}:{TESTS}",
        TRITON_CACHE_DIR=str(cache or out.parent / f"cache-{out.stem}"),
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program's recording."""
    out = tmp_path_factory.mktemp("recorded") / "server.yaml"
    ended = recorded(out, "here", "inside")
    assert ended.returncode == 0, ended.stderr
    return out


def built(spec: Path, out: Path, *options: str, folder: Path = PROGRAM) -> Any:
    own = command("build", "--spec", spec, "--out", out, *options)
    return python(*own[1:], cwd=folder)


@pytest.fixture(scope="module")
def bundle(server: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("recorded") / "bundle"
    ended = built(server, out)
    assert ended.returncode == 0, ended.stderr
    return out


def served(bundle: Path, how: str, *more: str, cache: Path) -> tuple[list[Any], dict[str, Any]]:
    """What the program compiled, and the status, when it serves from the bundle, strictly."""
    ended = python(
        str(PROGRAM / "server.py"), how, str(bundle), *more,
        PYTHONPATH=f"{ROOT}:{TESTS}", TRITON_CACHE_DIR=str(cache),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    compiled, status = json.loads(ended.stdout)
    return compiled, status


# What is recorded


def test_every_kernel_is_recorded_with_candidates_and_winner(server: Path) -> None:
    recording = load_spec([server]).recording
    assert recording is not None
    own = {f"five_kernels:{name}" for name in FIVE}
    assert {name for name, _ in recording.kernels} == own | {"server.py:of_the_program"}
    (tuning,) = recording.tunings
    assert tuning.values == (100, "torch.float32", "torch.float32")
    assert [json.loads(c)["kwargs"] for c in tuning.offered] == [
        [["WIDTH", 1], ["BLOCK", block]] for block in (32, 64, 128)
    ], "their order enters Triton's keys"
    assert tuning.winner == 2
    assert recording.recorded_on == ("h200",)


@pytest.mark.parametrize("how", ["spawn", "fork"])
def test_processes_that_are_spawned_and_forked_record_the_same(
    how: str, server: Path, tmp_path: Path
) -> None:
    ended = recorded(tmp_path / "server.yaml", how, "inside")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "server.yaml").read_text() == server.read_text()


def test_what_is_loaded_from_triton_s_cache_is_recorded_too(server: Path, tmp_path: Path) -> None:
    """A second run of the program compiles nothing and measures nothing."""
    for number in ("1", "2"):
        ended = recorded(tmp_path / f"{number}.yaml", "here", "inside", cache=tmp_path / "cache")
        assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[0])[0] == []
    second = load_spec([tmp_path / "2.yaml"]).recording
    assert second == load_spec([server]).recording


def test_a_recording_holds_no_absolute_path_and_no_data(server: Path) -> None:
    text = server.read_text()
    assert not re.search(r"(^|[\s'\"\[({,])/\w", text)
    assert str(Path.home()) not in text
    assert os.uname().nodename not in text.replace("h200", "")


def test_a_kernel_without_a_name_to_find_it_by_is_left_out_with_the_reason(server: Path) -> None:
    recording = load_spec([server]).recording
    assert recording is not None
    ((kernel, reason),) = recording.left_out
    assert kernel.endswith("inside")
    assert "cannot be found again" in reason


def test_the_program_s_exit_code_is_kept_and_the_recording_written(tmp_path: Path) -> None:
    out = tmp_path / "r.yaml"
    ended = ssd_aot("record", "--out", out, "--", sys.executable, "-c", "raise SystemExit(5)")
    assert ended.exit_code == 5
    assert load_spec([out]).recording == Recording()


def test_of_a_program_without_a_kernel_nothing_is_built(tmp_path: Path) -> None:
    out = tmp_path / "empty.yaml"

    ended = python(*command("record", "--out", out, "--", sys.executable, "-c", "pass")[1:])
    refused = built(out, tmp_path / "bundle", "--gpu", "h200")

    assert ended.returncode == 0
    assert "the program ran no Triton kernel" in ended.stderr
    assert refused.returncode != 0
    assert "the recording holds no launch" in refused.stderr
    assert not (tmp_path / "bundle").exists()


def test_a_server_that_is_told_to_end_is_ended_and_recorded(tmp_path: Path) -> None:
    out, ready = tmp_path / "r.yaml", tmp_path / "ready"
    sleeper = f"import pathlib, time; pathlib.Path({str(ready)!r}).touch(); time.sleep(60)"
    process = subprocess.Popen(
        command("record", "--out", out, "--", sys.executable, "-c", sleeper), cwd=ROOT
    )
    while not ready.exists():
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)

    assert process.wait(30) == 128 + signal.SIGTERM
    assert out.exists()


def test_a_program_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    ended = ssd_aot("record", "--out", tmp_path / "r.yaml", "--", "no-such-program")
    assert ended.exit_code == 2
    assert "cannot be started" in ended.stderr


# What is built of it, and served


def test_a_recorded_program_runs_from_its_bundle_without_a_compilation(
    bundle: Path, tmp_path: Path
) -> None:
    for how in ("here", "spawn", "fork"):
        compiled, status = served(bundle, how, cache=tmp_path)
        assert compiled == [0]
        assert status["misses"] == {}
        assert FIVE | {"of_the_program", "tuned.autotune.json"} == status["hits"].keys()


def test_warm_every_kernel_is_where_its_launch_looks_first(bundle: Path, tmp_path: Path) -> None:
    """A launch that found its kernel only by a look-up would count a second hit."""
    compiled, status = served(bundle, "here", "warm", cache=tmp_path)
    assert compiled == [1]
    assert status["hits"] == {
        "by_heuristic": 1, "nested": 1, "of_a_function": 2, "of_a_tuple": 1,
        "of_the_program": 1, "tuned": 1, "tuned.autotune.json": 1,
    }  # fmt: skip


def test_the_recorded_winner_is_taken_and_called_unchecked(bundle: Path) -> None:
    found = {e.launch.kernel: e for e in Bundle.open(bundle).manifest.variants}
    entry = found["five_kernels:tuned"]
    assert dict(entry.configuration.constexprs) == {"BLOCK": 128, "WIDTH": 1}
    assert (entry.tuning.status, entry.tuning.checked) == ("recorded", False)
    assert {e.tuning.status for name, e in found.items() if name != entry.launch.kernel} == {
        "fixed"
    }


def test_another_gpu_gets_the_winner_as_borrowed(server: Path, tmp_path: Path) -> None:
    ended = built(server, tmp_path / "b", "--gpu", "b200")
    assert ended.returncode == 0, ended.stderr
    manifest = Bundle.open(tmp_path / "b").manifest
    assert {entry.tuning.status for entry in manifest.variants} == {"fixed", "borrowed from h200"}
    assert {entry.object.arch for entry in manifest.variants} == {"sm_100a"}


def test_a_pin_chooses_among_the_recorded_candidates(server: Path, tmp_path: Path) -> None:
    pinned = tmp_path / "pinned.yaml"
    pinned.write_text(server.read_text() + "pin: {tuned: {BLOCK: 64}}\n")
    ended = built(pinned, tmp_path / "b")
    assert ended.returncode == 0, ended.stderr
    entries = {e.launch.kernel: e for e in Bundle.open(tmp_path / "b").manifest.variants}
    assert dict(entries["five_kernels:tuned"].configuration.constexprs)["BLOCK"] == 64


def test_the_same_recording_gives_the_same_digest(
    server: Path, bundle: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "elsewhere" / "other.yaml"
    moved.parent.mkdir()
    moved.write_text(server.read_text())
    ended = built(moved, tmp_path / "b")
    assert ended.returncode == 0, ended.stderr
    assert Bundle.open(tmp_path / "b").digest == Bundle.open(bundle).digest


def changed_program(folder: Path, old: str, new: str) -> Path:
    """The program in a folder of its own, with one text replaced."""
    for path in PROGRAM.glob("*.py"):
        text = path.read_text()
        (folder / path.name).write_text(text.replace(old, new))
    return folder


@pytest.mark.parametrize(
    ("old", "new", "kernel", "found"),
    [
        ("+ 1.0, mask", "+ 2.0, mask", "tuned", "another source text"),
        ('"""Five kernels', '"""\n\nFive kernels', "nested", "the same source text on line 62"),
        ("* 0.25", "* 0.125", "nested", "something other that it calls"),
        ("return x * x", "return x * x * 1.0", "squared", "another hash"),
    ],
    ids=["text", "line", "callee", "constexpr function"],
)  # fmt: skip
def test_a_changed_source_is_refused_by_name(
    old: str, new: str, kernel: str, found: str, server: Path, tmp_path: Path
) -> None:
    (tmp_path / "program").mkdir()
    folder = changed_program(tmp_path / "program", old, new)
    ended = built(server, tmp_path / "b", folder=folder)
    assert ended.returncode == 1, ended.stderr
    assert f"five_kernels:{kernel}" in ended.stderr
    assert found in ended.stderr
    assert not (tmp_path / "b").exists()


def test_where_the_program_is_not_installed_its_kernels_are_named(
    server: Path, tmp_path: Path
) -> None:
    ended = built(server, tmp_path / "b", folder=tmp_path)
    assert ended.returncode == 3
    assert "6 of 6 recorded kernels are not here" in ended.stderr
    assert "five_kernels:nested" in ended.stderr
    assert "no file server.py" in ended.stderr or "and 1 more" in ended.stderr


# Recordings as specs


def test_a_recording_is_read_as_it_was_written(server: Path) -> None:
    spec = load_spec([server])
    assert spec.recording is not None
    assert Spec.from_normalised(json.loads(json.dumps(spec.normalised()))) == spec
    assert spec_text(spec.recording) == server.read_text()


def launch(kernel: str, block: int) -> RecordedLaunch:
    arguments = (Argument("x", "*fp32", "aligned"),)
    return RecordedLaunch(
        Launch(kernel, (("BLOCK", block),), arguments), ((0, Configuration((), 4, 3)),)
    )


def test_recordings_merge_to_all_that_either_has(server: Path, tmp_path: Path) -> None:
    whole = load_spec([server]).recording
    assert whole is not None
    paths = []
    for number in (0, 1):
        part = replace(whole, launches=whole.launches[number::2])
        paths.append(tmp_path / f"{number}.yaml")
        paths[-1].write_text(spec_text(part))
    assert load_spec(paths).recording == whole
    assert load_spec(paths[::-1]).digest == load_spec([server]).digest


def test_recordings_of_two_sources_of_a_kernel_are_refused(server: Path) -> None:
    whole = load_spec([server]).recording
    assert whole is not None
    name, kernel = whole.kernels[0]
    other = replace(whole, kernels=((name, replace(kernel, source_sha256="0" * 64)),))
    with pytest.raises(SpecError, match=f"differ in the source of {name}") as caught:
        merged([(whole, "a.yaml"), (other, "b.yaml")])
    assert "a.yaml" in caught.value.wanted


def test_a_recording_and_a_spec_of_models_are_two_builds(server: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="a recording and a spec of models"):
        load_spec([server, ROOT / "specs" / "nemotron-3-super-120b.yaml"])


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda d: d["recording"].pop("launches"), "recording.launches"),
        (lambda d: d["recording"]["launches"][0].update(kernel="m:f"), "recording.launches["),
        (lambda d: d["recording"]["tunings"][0].update(winner=3), "recording.tunings[0].winner"),
        (lambda d: d["recording"]["tunings"][0].update(key="open('x')"), "tunings[0].key"),
        (lambda d: d.update(models={}), "models"),
        (lambda d: d.pop("recording"), "recording"),
        (lambda d: d.pop("source"), "source"),
    ],
)
def test_a_recording_that_was_damaged_is_refused_with_its_field(
    change: Any, place: str, server: Path, tmp_path: Path
) -> None:
    document = yaml.safe_load(server.read_text())
    change(document)
    damaged = tmp_path / "damaged.yaml"
    damaged.write_text(yaml.safe_dump(document))
    ended: Result = ssd_aot("plan", "--spec", damaged, "--gpu", "h200")
    assert ended.exit_code == 2
    assert place in ended.stderr


def test_lines_that_a_killed_process_left_half_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text('{"event": "left out", "kernel": "a:b", "reason": "r"}\n{"ev')
    assert gather(tmp_path).left_out == (("a:b", "r"),)


# Kernels that are hard to record


HOOKED = """
import five_kernels, triton, triton.language as tl
@triton.autotune(
    configs=[triton.Config({"BLOCK": b}, pre_hook=lambda args: None) for b in (32, 64)], key=["n"]
)
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def hooked(x_ptr, n, EVEN: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, 0.0, mask=EVEN | (i < n))
"""


def test_a_tuning_with_a_pre_hook_is_built_with_all_candidates_and_its_reason(
    tmp_path: Path,
) -> None:
    """C57; and what a heuristic derives from a candidate belongs to the candidate."""
    folder = tmp_path / "program"
    folder.mkdir()
    changed_program(folder, "class Never", "")
    (folder / "hooks.py").write_text(HOOKED)
    server = (folder / "server.py").read_text()
    server = server.replace("import five_kernels\n", "import five_kernels\nimport hooks\n")
    server = server.replace(
        "    x, found", "    hooks.hooked[(1,)](torch.ones(96, device=device), 96)\n    x, found"
    )
    (folder / "server.py").write_text(server)
    out = tmp_path / "hooked.yaml"
    own = command("record", "--out", out, "--", sys.executable, folder / "server.py", "here")
    ended = python(*own[1:], PYTHONPATH=f"{ROOT}:{TESTS}", TRITON_CACHE_DIR=str(tmp_path / "c"))
    assert ended.returncode == 0, ended.stderr

    ended = built(out, tmp_path / "b", folder=folder)

    assert ended.returncode == 0, ended.stderr
    assert "hooks:hooked is tuned at its first launch in each process" in ended.stderr
    assert "pre_hook" in ended.stderr
    entries = [
        dict(e.configuration.constexprs)
        for e in Bundle.open(tmp_path / "b").manifest.variants
        if e.launch.kernel == "hooks:hooked"
    ]
    assert sorted((e["BLOCK"], e["EVEN"]) for e in entries) == [(32, True), (64, False)]
