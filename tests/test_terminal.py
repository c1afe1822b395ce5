"""What a command says besides its result: how much, in which colours, and to the shell."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from bundle_builders import write_small_bundle
from click.shell_completion import ShellComplete
from command_line import ROOT, SHORT, TINY, command, elsewhere, ssd_aot
from spec_builders import write_spec

from ssd_aot import terminal
from ssd_aot.cli import COMMANDS, main
from ssd_aot.commands import build, inspect
from ssd_aot.errors import BuildError, UsageError
from ssd_aot.spec import shipped_specs
from ssd_aot.targets import TARGETS
from ssd_aot.terminal import Level, coloured

ESCAPE = "\x1b["


def built(tmp_path: Path, *options: str | Path) -> tuple[str, str]:
    """stdout and stderr of a build of two launches."""
    spec = write_spec(tmp_path, SHORT)
    result = ssd_aot("build", "--gpu", "h200", "--spec", spec, "--out", tmp_path / "b", *options)
    assert result.exit_code == 0, result.stderr
    return result.stdout, result.stderr


def test_a_build_says_how_far_it_is(tmp_path: Path) -> None:
    out, messages = built(tmp_path)

    assert "complete, compiled 2" in out
    assert "compiled 2/2" in messages


@pytest.mark.parametrize("option", ["-q", "--quiet"])
def test_a_quiet_build_says_its_result_alone(option: str, tmp_path: Path) -> None:
    out, messages = built(tmp_path, option)

    assert "complete, compiled 2" in out
    assert messages == ""


def test_a_note_is_left_out_where_a_command_is_quiet(tmp_path: Path) -> None:
    clipped = TINY.replace("matrix: {", "matrix: {lengths: [chunk_aligned], ")
    line = ("plan", "--gpu", "h200", "--spec", write_spec(tmp_path, clipped))

    assert "note: " in ssd_aot(*line).stderr
    assert ssd_aot(*line, "-q").stderr == ""


def test_a_verbose_build_names_each_variant_as_it_is_compiled(tmp_path: Path) -> None:
    _, messages = built(tmp_path, "--verbose")

    pieces = sorted(line for line in messages.splitlines() if line.endswith(" for h200"))
    assert [line.split("[")[0] for line in pieces] == ["compiled decay", "compiled scan"]
    assert "num_warps=" in pieces[0]


def test_a_quiet_command_tells_errors_all_the_same() -> None:
    result = ssd_aot("plan", "--gpu", "h20", "-q")

    assert "error: --gpu: unknown GPU" in result.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_the_level_may_stand_behind_every_command(name: str) -> None:
    shown = ssd_aot(name, "--help").stdout

    assert "-q, --quiet" in shown
    assert "-v, --verbose" in shown


def test_the_level_may_stand_before_a_command_and_ends_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Level] = []

    def see(*_: object) -> None:
        seen.append(terminal.level())
        raise UsageError("enough seen")

    monkeypatch.setattr(build, "read_selection", see)

    ssd_aot("-q", "build")
    ssd_aot("-v", "build")
    ssd_aot("build")

    assert seen == [Level.QUIET, Level.VERBOSE, Level.NORMAL]
    assert terminal.level() is Level.NORMAL


@pytest.mark.parametrize("line", [("plan", "-q", "-v"), ("-q", "plan", "-v"), ("-v", "plan", "-q")])
def test_quiet_and_verbose_contradict_each_other(line: tuple[str, ...]) -> None:
    result = ssd_aot(*line)

    assert result.exit_code == 2
    assert "-q and -v contradict each other" in result.stderr


def test_a_verbose_verify_shows_every_failure(tmp_path: Path) -> None:
    missing = tuple(f"scan[N={number}]" for number in range(30))
    bundle = write_small_bundle(tmp_path / "b", missing=missing, source="vllm")

    some = ssd_aot("verify", bundle.path).stdout
    every = ssd_aot("verify", bundle.path, "-v").stdout

    assert "10 more, all shown with -v" in some
    assert "scan[N=29]" not in some
    assert all(name in every for name in missing)


def test_a_build_that_fails_names_five_launches_and_all_where_it_is_verbose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = raising(BuildError("the kernel does not compile"))
    monkeypatch.setattr("ssd_aot.compilation.compiling.compile_variant", failing)
    line = ("build", "--gpu", "h200", "--spec", write_spec(tmp_path, TINY), "--out", tmp_path / "b")

    assert ssd_aot(*line).stderr.count("needed by ") == 5
    assert ssd_aot(*line, "-v").stderr.count("needed by ") == 8


def raising(error: Exception) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def test_a_fault_of_ours_is_told_in_two_lines_and_with_its_traceback_where_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(build, "read_selection", raising(ZeroDivisionError("nothing to divide")))

    plain, verbose = ssd_aot("build"), ssd_aot("build", "-v")

    assert (plain.exit_code, verbose.exit_code) == (1, 1)
    assert plain.stderr.splitlines() == [
        "error: a fault of ssd-aot itself: ZeroDivisionError: nothing to divide",
        "  mend:   run it again with -v for the traceback, and report it",
    ]
    assert "Traceback" in verbose.stderr
    assert "test_terminal.py" in verbose.stderr


def test_a_file_that_cannot_be_used_is_no_fault_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    error = PermissionError(13, "Permission denied", "/etc/shadow")
    monkeypatch.setattr(build, "read_selection", raising(error))

    result = ssd_aot("build")

    assert result.exit_code == 3
    assert result.stderr == "error: /etc/shadow: Permission denied\n"


def on_a_terminal(*arguments: str | Path, **environment: str) -> str:
    """What a command writes to a terminal that is its stdout and stderr."""
    ours, theirs = pty.openpty()
    given = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", **environment}
    given = {name: value for name, value in given.items() if value or name != "NO_COLOR"}
    with subprocess.Popen(command(*arguments), stdout=theirs, stderr=theirs, env=given):
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
    os.close(ours)
    return shown.decode()


def test_colours_are_for_terminals_where_they_are_wanted(tmp_path: Path) -> None:
    bundle = write_small_bundle(tmp_path / "b", source="vllm").path
    line = ("verify", bundle, "--digest", "0" * 64)

    seen = on_a_terminal(*line, NO_COLOR="")
    unwanted = on_a_terminal(*line, NO_COLOR="1")
    dumb = on_a_terminal(*line, NO_COLOR="", TERM="dumb")
    piped = elsewhere(*line, TERM="xterm")

    assert f"{ESCAPE}32mok{ESCAPE}0m" in seen
    assert f"{ESCAPE}31mfailed{ESCAPE}0m" in seen
    for text in (unwanted, dumb, piped.stdout):
        assert "NOT verified" in " ".join(text.split()), "wrapped where the path is long"
        assert ESCAPE not in text


def test_errors_are_red_on_a_terminal() -> None:
    assert f"{ESCAPE}31m{ESCAPE}1merror{ESCAPE}0m: --gpu" in on_a_terminal(
        "plan", "--gpu", "h20", NO_COLOR=""
    )


# A line of output; the words of it that are coloured.
WORDS = {
    "ok          files: 3 of 3 files are whole": ["ok"],
    "not checked digest: no digest was given": ["not checked"],
    "failed      code: ok is not everything": ["failed"],
    "lacking  torch: cannot be imported": ["lacking"],
    "tune     lacks torch": ["lacks"],
    "build    ready": ["ready"],
    "note: seqs2 was clipped": ["note"],
    "dist/h200: INCOMPLETE, compiled 2": ["INCOMPLETE"],
    "okay, this is text": [],
    "  failed: further in": [],
    "notes/origin.txt": [],
}


@pytest.mark.parametrize("line", WORDS)
def test_the_words_that_tell_an_outcome_are_coloured(line: str) -> None:
    shown = coloured(line)

    assert re.findall(r"\x1b\[[0-9]+m(?:\x1b\[1m)?([^\x1b]+)\x1b\[0m", shown) == WORDS[line]
    assert re.sub(r"\x1b\[[0-9]+m", "", shown) == line


@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_a_reader_that_goes_away_is_no_traceback(closed: str, tmp_path: Path) -> None:
    program = (
        "import sys, click\n"
        "from ssd_aot.commands import inspect\n"
        "import ssd_aot.verification.inspecting\n"
        "from ssd_aot.bundle.store import Bundle\n"
        "Bundle.open = lambda path: path\n"
        "def say(_):\n"
        "    for _ in range(9000): click.echo('x' * 80, err=err)\n"
        "ssd_aot.verification.inspecting.render = say\n"
        "from ssd_aot.cli import main; main(['inspect', '.'])\n"
    ).replace("err=err", f"err={closed == 'stderr'}")
    ended = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert ended.stdout is not None and ended.stderr is not None
    gone, left = (
        (ended.stdout, ended.stderr) if closed == "stdout" else (ended.stderr, ended.stdout)
    )
    with ended:
        gone.read(80)
        gone.close()
        said = left.read()

    assert ended.returncode == 141
    assert said == b""


def test_a_pipe_that_breaks_elsewhere_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "read_selection", raising(BrokenPipeError(32, "Broken pipe")))

    result = ssd_aot("build")

    assert result.exit_code == 1
    assert "BrokenPipeError" in result.stderr


def test_what_a_locale_cannot_show_is_spelled_out(tmp_path: Path) -> None:
    bundle = write_small_bundle(tmp_path / "b", missing=("scan[N=…]",), source="vllm").path

    ended = elsewhere("verify", bundle, PYTHONIOENCODING="iso8859-1")

    assert ended.returncode == 1
    assert ended.stderr == ""
    assert r"scan[N=\u2026]" in ended.stdout


def test_a_path_that_is_no_text_is_told(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff"

    ended = subprocess.run(
        [*map(os.fsencode, command("inspect")), name],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, check=False,
    )  # fmt: skip

    assert ended.returncode == 1
    assert rb"\udcff" in ended.stderr
    assert b"Traceback" not in ended.stderr


def completions(*words: str) -> set[str]:
    *before, incomplete = words
    shell = ShellComplete(main, {}, "ssd-aot", "_SSD_AOT_COMPLETE")
    return {item.value for item in shell.get_completions(before, incomplete)}


def test_the_shell_is_offered_commands_and_options() -> None:
    assert completions("") == set(COMMANDS)
    assert completions("in") == {"inspect"}
    assert {"--gpu", "--spec", "--json", "--quiet"} <= completions("plan", "--")


@pytest.mark.parametrize("name", ["build", "plan", "tune", "verify"])
def test_the_shell_is_offered_gpus_and_specs(name: str) -> None:
    assert completions(name, "--gpu", "") == {target.name for target in TARGETS}
    assert completions(name, "--gpu", "RTX-5") == {"rtx-5090"}
    assert completions(name, "--spec", "") == set(shipped_specs())
    assert completions(name, "--spec", "my/spec") == {"my/spec"}, "a file"


def test_the_shell_is_offered_sources() -> None:
    assert completions("build", "--source", "v") == {"vllm"}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_that_asks_the_program(shell: str) -> None:
    program = "from ssd_aot.cli import main; main(prog_name='ssd-aot')"
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT), "_SSD_AOT_COMPLETE": f"{shell}_source"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    if shell == "bash" and not ended.stdout:
        pytest.skip("this bash is older than completion asks for")
    assert f"_SSD_AOT_COMPLETE={shell}_complete" in ended.stdout


PROSE = ("env", "record")
"""What these print is text for a file of another kind, or what the program prints that they run."""


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in PROSE])
def test_every_command_with_a_result_prints_it_as_json_too(name: str) -> None:
    command = main.get_command(None, name)  # type: ignore[arg-type]

    assert command is not None
    assert "as_json" in {parameter.name for parameter in command.params}


def test_the_merge_of_two_records_is_told_as_json(tmp_path: Path) -> None:
    record = ROOT / "ssd_aot/tuning_records/h200.builtin.json"

    out = tmp_path / "merged.json"
    told = json.loads(
        ssd_aot("tune", "--merge", record, record, "--out", out, "--json").stdout
    )  # fmt: skip

    assert told["path"] == str(out)
    assert told["launches"] > 0


def widest(text: str) -> int:
    return max(map(len, text.splitlines()))


def test_what_people_read_fits_a_terminal(three_targets: Path, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, TINY)

    for line in (
        ("plan", "--gpu", "h200", "--spec", spec),
        ("inspect", three_targets),
        ("verify", three_targets),
        ("doctor",),
        *((name, "--help") for name in COMMANDS),
    ):
        assert widest(ssd_aot(*line).stdout) <= 80, line


def test_a_json_document_is_all_of_stdout_whatever_the_level(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, TINY)

    for level in ((), ("-q",), ("-v",)):
        shown = ssd_aot("plan", "--gpu", "h200", "--spec", spec, "--json", *level).stdout
        assert json.loads(shown)["variants"] == 8


def test_the_modules_of_commands_are_read_when_they_are_called_for() -> None:
    program = "import sys, ssd_aot.cli; print([m for m in sys.modules if 'commands.' in m])"

    assert elsewhere_python(program) == "[]"
    assert inspect.inspect.name == "inspect"


def elsewhere_python(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
