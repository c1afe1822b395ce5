"""The command line: what goes to which stream, and which exit code says what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import SHORT, TINY, elsewhere, ssd_aot
from spec_builders import write_spec

from ssd_aot.commands import build
from ssd_aot.spec import load_spec


def test_the_program_says_what_it_offers() -> None:
    result = ssd_aot("--help")

    assert result.exit_code == 0
    for name in ("build", "plan", "verify", "inspect", "spec"):
        assert f"\n  {name} " in result.stdout


WRONG = {
    "no such command": (("bild",), "bild"),
    "no such option": (("build", "--gpus", "h200"), "--gpus"),
    "unknown gpu": (("plan", "--gpu", "b2000"), "b200"),
    "no gpu": (("build",), "--gpu"),
    "no such spec": (("plan", "--gpu", "h200", "--spec", "nothing.yaml"), "nothing.yaml"),
    "unknown source": (("plan", "--gpu", "h200", "--source", "vlm"), "write vllm"),
    "no jobs": (("build", "--gpu", "h200", "--jobs", "0"), "--jobs"),
    "no config": (("spec", "--from-config", "nothing.json"), "nothing.json"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_usage_exits_2_and_names_what_is_wrong(case: str) -> None:
    arguments, named = WRONG[case]

    result = ssd_aot(*arguments)

    assert result.exit_code == 2
    assert result.stdout == ""
    assert named in result.stderr


@pytest.mark.parametrize("command", ["plan", "build", "tune"])
def test_a_misspelt_gpu_is_told_as_the_option_with_what_to_write(command: str) -> None:
    result = ssd_aot(command, "--gpu", "blackwell")

    assert result.exit_code == 2
    assert "error: --gpu: unknown GPU" in result.stderr
    assert "mend:   write one of these names" in result.stderr


@pytest.mark.parametrize(
    ("command", "option"),
    [("build", "--out"), ("tune", "--out"), ("tune", "--compile-only")],
)
def test_an_empty_place_to_write_is_not_the_current_folder(
    command: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    result = ssd_aot(command, "--gpu", "h200", option, "")

    assert result.exit_code == 2
    assert f"error: {option}: not a path" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_source_that_is_not_here_is_something_this_host_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ssd_aot.engines.engine.installed_version", lambda package: None)

    result = ssd_aot("build", "--gpu", "h200", "--source", "vllm", "--json")
    assert result.exit_code == 3
    assert result.stdout == ""
    assert "--source: the engine" in result.stderr
    assert "no package vllm" in result.stderr

    spec = write_spec(tmp_path, TINY + "source: sglang\n")
    result = ssd_aot("plan", "--gpu", "h200", "--spec", spec)
    assert result.exit_code == 3
    assert f"{spec}:5" in result.stderr

    result = ssd_aot("plan", "--gpu", "h200", "--spec", spec, "--source", "builtin")
    assert result.exit_code == 0


def test_a_bad_spec_exits_2_with_its_line(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, TINY.replace("headdim", "haeddim"))

    result = ssd_aot("build", "--gpu", "h200", "--spec", spec, "--json")

    assert result.exit_code == 2
    assert result.stdout == ""
    assert f"{spec}:3" in result.stderr
    assert "write headdim" in result.stderr


def test_the_targets_of_a_spec_serve_where_no_gpu_is_named(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, SHORT + "targets: [b200, h200]\n")

    planned = json.loads(ssd_aot("plan", "--spec", spec, "--json").stdout)

    assert {launch["target"] for launch in planned["launches"]} == {"b200", "h200"}


def test_a_notice_goes_to_stderr(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, TINY.replace("matrix: {", "matrix: {lengths: [chunk_aligned], "))

    result = ssd_aot("plan", "--gpu", "h200", "--spec", spec, "--json")

    assert "note: " in result.stderr
    assert json.loads(result.stdout)["variants"] > 0


def test_an_interrupt_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "read_selection", interrupted)

    result = ssd_aot("build", "--gpu", "h200")

    assert result.exit_code == 130
    assert "interrupted" in result.stderr


def test_a_spec_is_written_from_a_model_config(tmp_path: Path) -> None:
    config = tmp_path / "some-mamba" / "config.json"
    config.parent.mkdir()
    config.write_text(
        json.dumps(
            {
                "model_type": "mamba2", "num_heads": 64, "head_dim": 64, "state_size": 128,
                "n_groups": 1, "conv_kernel": 4, "chunk_size": 256,
            }
        )
    )  # fmt: skip

    written = ssd_aot("spec", "--from-config", config)

    assert written.exit_code == 0, written.stderr
    spec = write_spec(tmp_path, written.stdout)
    planned = ssd_aot("plan", "--gpu", "h200", "--spec", spec)
    assert "some-mamba/tp1/" in planned.stdout


def test_a_spec_as_json_is_a_spec_too(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "model_type": "mamba2", "num_heads": 64, "head_dim": 64, "state_size": 128,
                "n_groups": 1, "conv_kernel": 4, "chunk_size": 256,
            }
        )
    )  # fmt: skip
    text = ssd_aot("spec", "--from-config", config, "--name", "m").stdout
    data = ssd_aot("spec", "--from-config", config, "--name", "m", "--json").stdout

    assert json.loads(data)["models"]["m"]["nheads"] == 64
    specs = [load_spec([write_spec(tmp_path, form)]) for form in (text, data)]
    assert specs[0].digest == specs[1].digest


@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe"])
def test_a_model_config_that_is_none_exits_2(content: bytes, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_bytes(content)

    result = ssd_aot("spec", "--from-config", config)

    assert result.exit_code == 2
    assert str(config) in result.stderr


def test_inspect_shows_a_bundle_in_both_forms(three_targets: Path) -> None:
    shown = ssd_aot("inspect", three_targets)
    data = json.loads(ssd_aot("inspect", three_targets, "--json").stdout)

    assert "b300 (sm_103a)" in shown.stdout
    assert "24 default (24 unchecked)" in shown.stdout
    assert data["variants"] == 24


def test_it_runs_from_any_folder(tmp_path: Path) -> None:
    ended = elsewhere("plan", "--gpu", "h200", "--spec", "zamba2-7b", "--json", cwd=tmp_path)

    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["signatures"]
