"""`explain`: of a launch that missed, exactly the components of its key that differ, and a mend."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from command_line import ROOT, python, ssd_aot
from engine_bundles import EVEN
from forked import forked
from gapped_bundles import without, without_variant
from test_guard import told_of
from test_recording import TESTS, changed_program
from test_recording import bundle as bundle
from test_recording import server as server
from test_serving_triton import Served
from triton.runtime.autotuner import Config

from ssd_aot.bundle.manifest import KernelText
from ssd_aot.bundle.store import Bundle
from ssd_aot.cli import main
from ssd_aot.errors import UsageError
from ssd_aot.launches import Argument, Launch
from ssd_aot.runtime.asked import Asked
from ssd_aot.verification.explaining import asked_in, explain

OPERATION = "fixture_engine.operation"


def asked_for(bundle: Bundle, kernel: str) -> Asked:
    """What a program asks for that launches a variant of the bundle."""
    manifest = bundle.manifest
    entry = next(e for e in manifest.variants if e.launch.kernel == f"{OPERATION}:{kernel}")
    constexprs = (*entry.launch.constexprs, *entry.configuration.constexprs)
    return Asked(
        "compilation",
        entry.launch.kernel,
        "0" * 64,
        replace(entry.launch, constexprs=constexprs),
        entry.configuration,
        dict(manifest.source.kernels)[entry.launch.kernel],
        dict(manifest.texts)[entry.launch.kernel],
        arch=90,
        toolchain=manifest.toolchain,
    )


def tuning_asked_for(bundle: Bundle) -> Asked:
    manifest = bundle.manifest
    assert manifest.triton is not None
    tuning = next(t for t in manifest.triton.tunings if t.kernel.endswith(":pruned"))
    stored = json.loads((bundle.path / tuning.path).read_text())
    return replace(
        asked_for(bundle, "pruned"),
        kind="tuning",
        launch=None,
        configuration=None,
        tuning_key=tuple(stored["key"]),
        candidates=tuple(json.dumps(c, sort_keys=True) for c in stored["candidates"]),
    )


def with_launch(change: Callable[[Launch], Launch]) -> Callable[[Asked], Asked]:
    def changed(asked: Asked) -> Asked:
        assert asked.launch is not None
        return replace(asked, launch=change(asked.launch))

    return changed


def with_argument(name: str, spelled: str) -> Callable[[Asked], Asked]:
    def change(launch: Launch) -> Launch:
        wanted = Argument.parse(name, spelled)
        arguments = tuple(wanted if a.name == name else a for a in launch.arguments)
        assert arguments != launch.arguments
        return replace(launch, arguments=arguments)

    return with_launch(change)


def with_configuration(**fields: Any) -> Callable[[Asked], Asked]:
    def changed(asked: Asked) -> Asked:
        assert asked.configuration is not None
        return replace(asked, configuration=replace(asked.configuration, **fields))

    return changed


def with_source(sha256: str | None = None, line: int | None = None) -> Callable[[Asked], Asked]:
    def changed(asked: Asked) -> Asked:
        assert asked.source is not None
        text = KernelText(sha256 or asked.source.sha256, line or asked.source.line)
        return replace(asked, source=text, source_sha256="1" * 64)

    return changed


def with_toolchain(**fields: Any) -> Callable[[Asked], Asked]:
    def changed(asked: Asked) -> Asked:
        assert asked.toolchain is not None
        return replace(asked, toolchain=replace(asked.toolchain, **fields))

    return changed


def with_variable(name: str, value: str) -> Callable[[Asked], Asked]:
    def changed(asked: Asked) -> Asked:
        assert asked.toolchain is not None
        environment = dict(asked.toolchain.environment) | {name: value}
        return with_toolchain(environment=tuple(environment.items()))(asked)

    return changed


CHANGES: dict[str, tuple[Callable[[Asked], Asked], str, str, str]] = {
    "text": (with_source(sha256="2" * 64), "source text", "", "sources that serve now"),
    "line": (with_source(line=999), "source line", "", "counts the line"),
    "callee": (with_source(), "source of what it calls, or a constant", "", "sources that serve"),
    "class": (with_argument("n", "i32 ==1"), "argument class", "n", "n comes as i32 ==1"),
    "type": (with_argument("n", "i64 %16"), "argument type", "n", "n comes as i64 %16"),
    "pointer": (
        with_argument("x_ptr", "*bf16 unaligned"), "argument class", "x_ptr", "*bf16 unaligned"
    ),
    "constexpr": (
        with_launch(lambda launch: replace(launch, constexprs=(("BLOCK", 8),))),
        "constexpr", "BLOCK", "BLOCK is 8",
    ),
    "warps": (with_configuration(num_warps=8), "option", "num_warps", "num_warps=8"),
    "option": (
        with_launch(lambda launch: replace(launch, options=(("enable_fp_fusion", False),))),
        "option", "enable_fp_fusion", "enable_fp_fusion=False",
    ),
    "triton": (with_toolchain(triton_content="3" * 64), "Triton", "", "in the image"),
    "ptxas": (with_toolchain(ptxas_version="ptxas 11.0"), "ptxas", "", "ptxas 11.0"),
    "python": (with_toolchain(python_abi="cpython-314"), "Python", "", "cpython-314"),
    "platform": (with_toolchain(platform="linux-aarch64"), "platform", "", "linux-aarch64"),
    "variable": (
        with_variable("DISABLE_LLVM_OPT", "1"), "environment variable", "DISABLE_LLVM_OPT",
        "unset DISABLE_LLVM_OPT",
    ),
    "architecture": (lambda asked: replace(asked, arch=100), "architecture", "", "sm_100"),
}  # fmt: skip


@pytest.mark.parametrize("case", CHANGES)
def test_one_component_changed_is_named_and_no_other(case: str, engine_bundle: Path) -> None:
    change, component, name, mend = CHANGES[case]
    held = Bundle.open(engine_bundle)

    explanation = explain(held, change(asked_for(held, "pruned")))

    (found,) = explanation.nearest.differences
    assert (found.component, found.name) == (component, name)
    assert mend in explanation.advice
    assert found.found != found.held


def test_what_the_bundle_holds_differs_in_nothing(engine_bundle: Path) -> None:
    held = Bundle.open(engine_bundle)
    for asked in (asked_for(held, "pruned"), asked_for(held, "added"), tuning_asked_for(held)):
        explanation = explain(held, asked)
        assert explanation.held
        assert "load the bundle in this process" in explanation.advice


@pytest.mark.parametrize(
    ("change", "component"),
    [
        (lambda a: replace(a, tuning_key=(a.tuning_key[0] + 16, *a.tuning_key[1:])), "tuning key"),
        (lambda a: replace(a, candidates=a.candidates[:1]), "candidates"),
        (lambda a: replace(a, candidates=a.candidates[::-1]), "candidates"),
        (with_source(line=999), "source line"),
        (with_toolchain(ptxas_version="ptxas 11.0"), "ptxas"),
        (lambda a: replace(a, arch=100), "architecture"),
    ],
)
def test_one_component_of_a_tunings_key_changed_is_named_and_no_other(
    change: Callable[[Asked], Asked], component: str, engine_bundle: Path
) -> None:
    held = Bundle.open(engine_bundle)
    (found,) = explain(held, change(tuning_asked_for(held))).nearest.differences
    assert found.component == component


# From what a process really asked for


def one_more(op: Any) -> None:
    op.pruned.configs.append(Config({"BLOCK": 8}, num_warps=1))
    op.run_pruned(EVEN.nheads)


@pytest.mark.parametrize(
    ("calls", "component", "name"),
    [
        (lambda op: op.run_strided(1), "argument class", "stride"),
        (lambda op: op.run_added((4, 0, 0)), "argument class", "a_ptr"),
        (lambda op: op.run_added((0, 0, 0), dtype=op.tl.float16), "constexpr", "DTYPE"),
        (lambda op: op.strided[(1,)](op.meta(512)[::32], 32, num_warps=8), "option", "num_warps"),
        (lambda op: op.run_pruned(48), "tuning key", ""),
        (one_more, "candidates", ""),
    ],
)
def test_a_real_miss_is_explained_by_its_one_component(
    calls: Callable[[Any], object], component: str, name: str, engine_bundle: Path, tmp_path: Path
) -> None:
    def asks(served: Served) -> None:
        calls(served.op)

    def work() -> Any:
        return told_of(engine_bundle, asks, strict=True)

    lines, *_ = forked(work, TRITON_CACHE_DIR=str(tmp_path))
    log = tmp_path / "server.log"
    log.write_text("INFO started\n" + "".join(f"WARNING ssd_aot {line}\n" for line in lines))

    ended = ssd_aot("explain", engine_bundle, "--launch", log, "--json")

    assert ended.exit_code == 0, ended.output
    (found,) = json.loads(ended.stdout)["launches"]
    assert [(d["component"], d["name"]) for d in found["differences"]] == [(component, name)]
    assert found["mend"]


@pytest.mark.parametrize(
    ("old", "new", "component"),
    [
        ('"""Five kernels', '"""\n\nFive kernels', "source line"),
        ("+ i, halved(x)", "+ i, halved(x) + 0", "source text"),
        ("* 0.25", "* 0.125", "source of what it calls, or a constant"),
    ],
)
def test_a_real_change_of_a_source_is_told_as_text_line_or_callee(
    old: str, new: str, component: str, bundle: Path, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    program.mkdir()
    changed_program(program, old, new)
    ended = python(
        str(program / "server.py"), "here", str(bundle), "lenient",
        PYTHONPATH=f"{ROOT}:{TESTS}", TRITON_CACHE_DIR=str(tmp_path / "c"),
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr

    asked = asked_in(ended.stderr, "stderr")

    held = Bundle.open(bundle)
    nested = [explain(held, a) for a in asked if a.kernel == "five_kernels:nested"]
    assert [[d.component for d in one.nearest.differences] for one in nested] == [[component]]


# The command


def test_a_launch_on_standard_input_is_explained_for_people(engine_bundle: Path) -> None:
    held = Bundle.open(engine_bundle)
    line = with_argument("n", "i32 ==1")(asked_for(held, "pruned")).line()
    ended = CliRunner().invoke(main, ["explain", str(engine_bundle)], input=line)
    assert ended.exit_code == 0, ended.stderr
    assert "differs: argument class n" in ended.stdout
    assert "asked: i32 ==1" in ended.stdout
    assert "mend:" in ended.stdout


def test_a_kernel_that_the_bundle_lacks_is_told_so(engine_bundle: Path) -> None:
    explanation = explain(Bundle.open(engine_bundle), Asked("compilation", "m:f", "0" * 64))
    assert explanation.nearest.entry == ""
    assert "record the program" in explanation.advice
    assert "nothing of this kernel" in "\n".join(explanation.lines())


def test_a_log_without_a_miss_and_a_line_that_was_cut_are_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no line of the guard's"):
        asked_in("INFO started\n", "log")
    with pytest.raises(UsageError, match="not a line of the guard's") as caught:
        asked_in('ok\n{"ssd_aot": "miss", "kind": "compil\n', "log")
    assert caught.value.where == "log:2"


def test_a_recording_of_what_was_built_is_held(server: Path, bundle: Path, tmp_path: Path) -> None:
    ended = ssd_aot("explain", bundle, "--recording", server, "--json")
    found = json.loads(ended.stdout)["recording"]
    assert found["missing"] == []
    assert (found["launches"], ended.exit_code) == (7, 1), "one kernel could not be recorded"
    assert [name.rpartition(".")[2] for name in found["kernels_outside"]] == ["inside"]


def test_kernels_of_the_program_outside_the_bundle_are_named(
    server: Path, engine_bundle: Path
) -> None:
    """C08: prefill covered, the kernels of decode not."""
    ended = ssd_aot("explain", engine_bundle, "--recording", server)
    assert ended.exit_code == 1
    assert "kernels of the program outside the bundle" in ended.stdout
    assert "five_kernels:nested" in ended.stdout


def test_a_recorded_launch_that_was_taken_away_is_explained(
    server: Path, bundle: Path, tmp_path: Path
) -> None:
    gone = without(
        bundle,
        tmp_path / "b",
        without_variant(lambda e: "squared" in str(dict(e.launch.constexprs).get("F"))),
    )
    ended = ssd_aot("explain", gone.path, "--recording", server, "--json")
    (missing,) = json.loads(ended.stdout)["recording"]["missing"]
    assert {(d["component"], d["name"]) for d in missing["differences"]} == {
        ("constexpr", "F"), ("option", "num_warps"),
    }  # fmt: skip


def test_every_component_has_advice() -> None:
    from ssd_aot.verification.explaining import _ADVICE

    told = {component for _, component, _, _ in CHANGES.values()} | {"tuning key", "candidates"}
    assert told == _ADVICE.keys()
