"""Building through the command line: whole or nothing, resumable, the same everywhere."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import ROOT, SHORT, TINY, command, elsewhere, heed_interrupts, python, ssd_aot
from spec_builders import write_spec

from ssd_aot.bundle.store import Bundle
from ssd_aot.candidates import candidates
from ssd_aot.compilation import compiling
from ssd_aot.errors import BuildError
from ssd_aot.launches import Configuration, Launch, Variant
from ssd_aot.targets import Target, target
from ssd_aot.triton_compat import CompiledObject, compile_variant, layout_can_be_fixed

TWO_STATES = SHORT.replace("matrix: {", "matrix: {state_dtype: [fp32, fp16], ")
"""Two signatures in three launches: the decay is common to both."""


def built(*arguments: str | Path) -> dict[str, Any]:
    """The JSON report of a build that must succeed."""
    result = ssd_aot("build", *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def test_a_build_needs_no_gpu_and_says_that_nothing_was_measured(tmp_path: Path) -> None:
    """C40, C41: every function of torch.cuda raises, and it is never noticed."""
    spec = write_spec(tmp_path, SHORT)
    program = (
        "import sys, torch, types\n"
        "def refuse(*a, **k): raise AssertionError('the build asked for a device')\n"
        "for name, value in list(vars(torch.cuda).items()):\n"
        "    if isinstance(value, types.FunctionType): setattr(torch.cuda, name, refuse)\n"
        "from ssd_aot.cli import main\n"
        "main(sys.argv[1:])\n"
    )

    ended = python(
        "-c", program, "build", "--gpu", "b200", "--spec", str(spec), "--out", str(tmp_path / "b")
    )

    assert ended.returncode == 0, ended.stderr
    assert "tuned: default (2)" in ended.stdout
    manifest = Bundle.open(tmp_path / "b").manifest
    assert {entry.tuning.status for entry in manifest.variants} == {"default"}
    assert not any(entry.tuning.checked for entry in manifest.variants)


def test_several_gpus_make_one_bundle_in_the_default_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = write_spec(tmp_path, SHORT)
    monkeypatch.chdir(tmp_path)

    report = built("--gpu", "h200", "--gpu", "h100", "--spec", spec)

    assert report["path"] == "dist/h200+h100"
    assert report["variants"] == 4
    assert report["compiled"] == 2, "two models of one architecture share their code"
    assert ssd_aot("verify", "dist/h200+h100").exit_code == 0


def test_a_build_in_another_bundles_place_says_which_it_replaces(tmp_path: Path) -> None:
    place = tmp_path / "b"
    first = built("--gpu", "b200", "--spec", write_spec(tmp_path, SHORT), "--out", place)
    again = built("--gpu", "b200", "--spec", write_spec(tmp_path, SHORT), "--out", place)

    other = ssd_aot("build", "--gpu", "h200", "--spec", tmp_path / "spec.yaml", "--out", place)

    assert first["replaced"] == again["replaced"] == ""
    assert f"replaces the bundle {first['digest'][:12]}" in other.stdout


def test_a_build_with_nothing_to_do_ends_at_once(three_targets: Path) -> None:
    spec = three_targets.parent / "tiny.yaml"
    before = three_targets.stat()
    gpus = [option for name in ("h200", "b200", "b300") for option in ("--gpu", name)]
    began = time.monotonic()

    ended = ssd_aot("build", *gpus, "--spec", spec, "--out", three_targets)

    # Two seconds as a process of its own on an idle machine; the tests' machine is rarely idle.
    assert time.monotonic() - began < 6
    assert ended.exit_code == 0, ended.stderr
    assert "nothing to do" in ended.stdout
    after = three_targets.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.skipif(not layout_can_be_fixed(), reason="address randomisation stays on here")
def test_two_builds_have_one_digest_whatever_the_place_and_the_environment(tmp_path: Path) -> None:
    """C27, and one job or two."""
    digests = []
    for number, (jobs, mask) in enumerate((("1", "022"), ("2", "077"))):
        folder = tmp_path / ("x" * (number * 20 + 1))
        (folder / "tmp").mkdir(parents=True)
        spec = write_spec(folder, TWO_STATES, f"{number}.yaml")
        line = command("build", "--gpu", "b200", "--spec", spec, "--out", "b", "--jobs", jobs)
        subprocess.run(
            ["sh", "-c", f'umask {mask}; exec "$@"', "sh", *line],
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "PYTHONHASHSEED": str(number),
                "TMPDIR": str(folder / "tmp"),
                "HOME": str(folder),
            },
            check=True,
            capture_output=True,
        )
        digests.append(Bundle.open(folder / "b").digest)
        assert not Bundle.open(folder / "b").check_files()
    assert digests[0] == digests[1]


def wait_for_entries(out: Path, count: int) -> None:
    """Until a build has kept that many compilations."""
    entries = out.with_name(out.name + ".partial") / "entries"
    for _ in range(600):
        if entries.is_dir() and len(list(entries.iterdir())) >= count:
            return
        time.sleep(0.05)
    raise AssertionError("the build does not get on")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_build_that_is_ended_compiles_only_the_rest_when_run_again(
    number: signal.Signals, tmp_path: Path
) -> None:
    out = tmp_path / "b"
    line = ("--gpu", "h200", "--spec", write_spec(tmp_path, TINY), "--out", out, "--jobs", "1")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    # A session of its own: Ctrl-C reaches a whole process group.
    with subprocess.Popen(
        command("build", *line),
        env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=heed_interrupts,
    ) as build:  # fmt: skip
        wait_for_entries(out, 2)
        os.killpg(build.pid, number)
        _, messages = build.communicate()
    if number == signal.SIGINT:
        assert build.returncode == 130
        assert "interrupted" in messages
        assert "Traceback" not in messages
    assert not out.exists()

    report = built(*line)

    assert report["reused"] >= 2
    assert report["compiled"] + report["reused"] == 8
    assert sorted(os.listdir(tmp_path)) == ["b", "spec.yaml"]


def refuse_fp16_states(error: Exception) -> Callable[[Any, Variant, Target], CompiledObject]:
    """`compile_variant`, but for the launches of one of `TWO_STATES`' two signatures."""

    def compile_or_fail(function: Any, variant: Variant, target: Target) -> CompiledObject:
        if any(argument.type == "*fp16" for argument in variant.launch.arguments):
            raise error
        return compile_variant(function, variant, target)

    return compile_or_fail


FAILURES = [BuildError("the kernel does not compile", found="no such instruction"), MemoryError()]


@pytest.mark.parametrize("error", FAILURES, ids=["compiler", "memory"])
def test_one_signature_that_fails_fails_the_build_by_name(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C02."""
    monkeypatch.setattr(compiling, "compile_variant", refuse_fp16_states(error))
    out = tmp_path / "b"

    result = ssd_aot(
        "build", "--gpu", "h200", "--spec", write_spec(tmp_path, TWO_STATES), "--out", out, "--json"
    )

    assert result.exit_code == 1
    assert result.stdout == ""
    assert "1 of 3 launches could not be built" in result.stderr
    assert "needed by tiny/tp1/bf16-bf16-bf16-fp16/" in result.stderr
    assert ("no such instruction" if isinstance(error, BuildError) else "memory") in result.stderr
    assert not out.exists()


def test_keep_going_leaves_an_incomplete_bundle_that_does_not_verify(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = refuse_fp16_states(BuildError("the kernel does not compile"))
    monkeypatch.setattr(compiling, "compile_variant", failing)
    spec, out = write_spec(tmp_path, TWO_STATES), tmp_path / "b"

    result = ssd_aot("build", "--gpu", "h200", "--spec", spec, "--out", out, "--keep-going")

    assert result.exit_code == 1
    assert "INCOMPLETE" in result.stdout
    assert "failed: scan[" in result.stderr
    assert len(Bundle.open(out).manifest.missing) == 1
    verified = ssd_aot("verify", out)
    assert verified.exit_code == 1
    assert "a launch that the build could not make" in " ".join(verified.stdout.split())

    monkeypatch.undo()
    assert built("--gpu", "h200", "--spec", spec, "--out", out)["complete"]


def test_many_failures_are_told_in_few_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(function: Any, variant: Variant, target: Target) -> CompiledObject:
        raise BuildError("the kernel does not compile")

    monkeypatch.setattr(compiling, "compile_variant", fail)
    many = TINY.replace("matrix: {", "matrix: {state_dtype: [fp32, fp16, bf16], D: [none, head], ")
    line = ("--gpu", "h200", "--spec", write_spec(tmp_path, many), "--out", tmp_path / "b")

    whole = ssd_aot("build", *line)
    partial = ssd_aot("build", *line, "--keep-going")

    assert "19 of 19 launches could not be built" in whole.stderr
    assert whole.stderr.count("needed by ") == 5
    assert "and 14 more" in whole.stderr
    assert partial.stderr.count("failed: ") == 6
    assert "failed: and 14 more" in partial.stderr


def test_a_full_disk_is_something_this_host_lacks_and_the_next_build_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C26."""
    out = tmp_path / "b"
    line = ("--gpu", "h200", "--spec", write_spec(tmp_path, SHORT), "--out", out)
    write = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if "b.partial" in path.parts and any(out.parent.glob("b.partial/entries/*")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        result = ssd_aot("build", *line)

    assert result.exit_code == 3
    assert str(tmp_path / "b.partial" / "entries") in result.stderr
    assert "bytes for the next file" in result.stderr
    assert not out.exists()
    assert built(*line)["reused"] == 1


@pytest.mark.parametrize("gpu", ["h200", "b200"])
def test_a_ptxas_that_is_too_old_is_found_before_anything_is_written(
    gpu: str, tmp_path: Path
) -> None:
    """C42."""
    tool = tmp_path / "ptxas"
    tool.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 11.8, V11.8.89'\n")
    tool.chmod(0o755)
    spec = write_spec(tmp_path, SHORT)

    ended = elsewhere(
        "build", "--gpu", gpu, "--spec", spec, "--out", tmp_path / "b",
        TRITON_PTXAS_PATH=str(tool), TRITON_PTXAS_BLACKWELL_PATH=str(tool),
    )  # fmt: skip

    assert ended.returncode == 3
    for part in (str(tool), "11.8", "sm_90a" if gpu == "h200" else "sm_100a"):
        assert part in ended.stderr
    assert sorted(os.listdir(tmp_path)) == ["ptxas", "spec.yaml"]


@pytest.mark.parametrize("limit_bytes", [3000, 100])
def test_candidates_beyond_the_targets_shared_memory_are_dropped(
    limit_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C43: by the target's limit, whatever the machine that builds; none left is a failure with
    both numbers."""
    small = replace(target("rtx-4090"), shared_bytes_optin=limit_bytes)
    monkeypatch.setattr("ssd_aot.commands.selecting.target", lambda name, where: small)
    monkeypatch.setattr("ssd_aot.plan.candidates", few_candidates)
    spec, out = write_spec(tmp_path, SHORT), tmp_path / "b"

    result = ssd_aot("build", "--gpu", "rtx-4090", "--spec", spec, "--out", out, "--keep-going")

    manifest = Bundle.open(out).manifest
    fitting = {entry.launch.kernel: entry.object.shared_bytes for entry in manifest.variants}
    assert set(fitting) == ({"decay"} if limit_bytes == 3000 else set())
    assert all(size <= limit_bytes for size in fitting.values())
    assert "dropped: 2 candidates of scan for rtx-4090: they need " in result.stderr
    assert f"bytes of shared memory, rtx-4090 allows {limit_bytes}" in result.stderr
    assert result.exit_code == 1


def few_candidates(launch: Launch, gpu: Target) -> tuple[Configuration, ...]:
    """Two each; of `decay`, one that needs much shared memory and one that needs little."""
    every = candidates(launch, gpu)
    return (every[0], every[-1]) if launch.kernel == "decay" else every[:2]


@pytest.mark.parametrize("content", ["a file", "a folder with a file", "nothing named"])
def test_what_is_there_and_no_bundle_is_refused_before_compiling(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, out = write_spec(tmp_path, SHORT), tmp_path / "out"
    if content == "a file":
        out.write_text("kept")
    elif content == "a folder with a file":
        out.mkdir()
        (out / "kept").touch()
    monkeypatch.setattr(compiling, "work_off", None)

    result = ssd_aot(
        "build", "--gpu", "h200", "--spec", spec,
        "--out", "" if content == "nothing named" else out,
    )  # fmt: skip

    assert result.exit_code == 2
    assert sorted(os.listdir(tmp_path)) == sorted({"spec.yaml", out.name} & {*os.listdir(tmp_path)})


def test_a_bundle_can_be_built_anew_from_inside_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ("--gpu", "h200", "--spec", write_spec(tmp_path, SHORT))
    built(*line, "--out", tmp_path / "b")
    monkeypatch.chdir(tmp_path / "b")

    report = built(*line, "--gpu", "h100", "--out", ".")

    assert report["complete"]
    assert sorted(os.listdir(tmp_path)) == ["b", "spec.yaml"]


@pytest.mark.parametrize("cache", ["", "relative/cache"])
def test_the_users_triton_cache_is_left_alone(cache: str, tmp_path: Path) -> None:
    """C25."""
    spec = write_spec(tmp_path, SHORT)

    ended = elsewhere(
        "build", "--gpu", "h200", "--spec", spec, "--out", "b", cwd=tmp_path, TRITON_CACHE_DIR=cache
    )

    assert ended.returncode == 0, ended.stderr
    assert sorted(os.listdir(tmp_path)) == ["b", "spec.yaml"]
    assert b"relative/cache" not in (tmp_path / "b" / "manifest.json").read_bytes()


CORNERS = """\
version: 1
models:
  s16: {nheads: 2, headdim: 64, dstate: 16, ngroups: 1}
  s64: {nheads: 2, headdim: 64, dstate: 64, ngroups: 1}
  s96: {nheads: 2, headdim: 64, dstate: 96, ngroups: 1}
  s128: {nheads: 2, headdim: 64, dstate: 128, ngroups: 1}
  s256: {nheads: 2, headdim: 64, dstate: 256, ngroups: 1}
matrix: {chunk_size: [64, 128, 256], HAS_INITSTATES: [true], num_seqs: [300..400]}
"""
MIXED = SHORT.replace("tiny", "mixed").replace(
    "matrix: {", "matrix: {dtype: [fp16], state_dtype: [bf16], "
)


def test_every_state_dim_and_chunk_size_and_mixed_dtypes_compile(tmp_path: Path) -> None:
    """C10, C11."""
    corners = write_spec(tmp_path, CORNERS, "corners.yaml")
    mixed = write_spec(tmp_path, MIXED, "mixed.yaml")

    report = built("--gpu", "h200", "--spec", corners, "--spec", mixed, "--out", tmp_path / "b")

    assert report["signatures"] == 16
    assert report["variants"] == 8, "one scan a state dim and dtype, one decay a dtype"


def test_a_host_that_cannot_reproduce_says_so_with_the_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "layout_can_be_fixed", lambda: False)
    spec = write_spec(tmp_path, SHORT)

    result = ssd_aot("build", "--gpu", "h200", "--spec", spec, "--out", tmp_path / "b", "--json")

    assert result.exit_code == 0
    assert json.loads(result.stdout)["reproducible"] is False
    assert "another digest" in result.stderr
    assert "seccomp" in result.stderr
