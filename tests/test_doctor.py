"""`ssd-aot doctor`: what is told of a host, and that nothing that is broken there ends it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from bundle_builders import write_small_bundle
from command_line import ROOT, elsewhere, ssd_aot

from ssd_aot.bundle.choosing import DeviceFacts
from ssd_aot.doctor import examining, host, service
from ssd_aot.doctor.diagnosis import PURPOSES, Diagnosis, Item, Purpose
from ssd_aot.doctor.gpus import gpu_items
from ssd_aot.doctor.packages import EXTRAS, package_items
from ssd_aot.doctor.probing import Probed, probe
from ssd_aot.doctor.toolchain import toolchain_items
from ssd_aot.engines.engine import ENGINES, engine
from ssd_aot.targets import TARGETS

TORCH = {"version": "2.13.0", "cuda": "13.0"}
TRITON: dict[str, Any] = {
    "version": "3.7.1",
    "identity": {"content": "c" * 64},
    "assemblers": {"versions": "ptxas 12.8.93", "environment": {}},
    "layout": {"fixed": True},
    "architectures": {target.arch: {} for target in TARGETS},
}
H200 = {"name": "NVIDIA H200", "capability": [9, 0]}
DRIVER = {"cuda": "13.0", "devices": [H200]}
ABSENT = {"trouble": "No module named 'it'"}


def diagnosis(torch: object = TORCH, triton: object = TRITON, driver: object = DRIVER) -> Diagnosis:
    """What is told of the toolchain and the GPUs from what the probes answered."""
    toolchain = toolchain_items(Probed.of(torch), Probed.of(triton))
    return Diagnosis((*toolchain, *gpu_items(Probed.of(driver))))


def item(items: Iterable[Item] | Diagnosis, name: str) -> Item:
    every = items.items if isinstance(items, Diagnosis) else items
    (found,) = (i for i in every if i.name == name)
    return found


def stopped(found: Diagnosis) -> dict[str, list[str]]:
    return {p: [i.name for i in found.lacks(p)] for p in PURPOSES if found.lacks(p)}


def test_a_host_with_everything_lacks_nothing() -> None:
    found = diagnosis()

    assert stopped(found) == {}
    assert item(found, "GPU 0").what == "NVIDIA H200, compute capability 9.0, is h200"


def too_old(arch: str) -> dict[str, str]:
    return {"trouble": f"ptxas is too old for {arch}", "mend": "set TRITON_PTXAS_PATH"}


# The answers of the probes; by purpose, what stops it.
LACKS: dict[str, tuple[dict[str, Any], dict[str, list[str]]]] = {
    "no torch": (
        {"torch": ABSENT}, {"build": ["torch"], "tune": ["torch"], "serve": ["torch"]},
    ),
    "a torch without CUDA": (
        {"torch": {**TORCH, "cuda": ""}}, {"tune": ["torch"], "serve": ["torch"]},
    ),
    "no triton": ({"triton": ABSENT}, {"build": ["triton"], "tune": ["triton"]}),
    "a triton of another release": (
        {"triton": {**TRITON, "version": "3.10.0"}}, {"build": ["triton"], "tune": ["triton"]},
    ),
    "a triton that cannot be identified": (
        {"triton": {**TRITON, "identity": {"trouble": "Permission denied"}}},
        {"build": ["triton identity"], "tune": ["triton identity"]},
    ),
    "a ptxas that knows no target": (
        {"triton": {**TRITON, "architectures": {t.arch: too_old(t.arch) for t in TARGETS}}},
        {"build": ["ptxas"] * 7, "tune": ["ptxas"] * 7},
    ),
    "no driver": ({"driver": ABSENT}, {"tune": ["CUDA driver"], "serve": ["CUDA driver"]}),
    "no GPU": ({"driver": {**DRIVER, "devices": []}}, {"tune": ["GPU"], "serve": ["GPU"]}),
    "an old GPU": (
        {"driver": {**DRIVER, "devices": [{"name": "Tesla V100", "capability": [7, 0]}]}},
        {"tune": ["GPU 0"], "serve": ["GPU 0"]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LACKS)
def test_what_is_lacking_stops_what_needs_it_and_has_a_mend(case: str) -> None:
    answers, wanted = LACKS[case]

    found = diagnosis(**answers)

    assert stopped(found) == wanted
    assert all(i.mend for i in found.items if i.status == "lacking")


def test_a_ptxas_that_knows_some_targets_names_the_gpus_it_does_not_know() -> None:
    architectures = {**TRITON["architectures"], "sm_103a": too_old("sm_103a")}

    found = diagnosis(triton={**TRITON, "architectures": architectures})

    assert stopped(found) == {}
    known, unknown = (i for i in found.items if i.name == "ptxas")
    assert "sm_103a" not in known.what
    assert unknown.what == "cannot build for b300, gb300 (sm_103a)"
    assert unknown.mend == "set TRITON_PTXAS_PATH"


def test_a_host_that_cannot_fix_addresses_is_told_how_it_could() -> None:
    found = item(diagnosis(triton={**TRITON, "layout": {"fixed": False}}), "address layout")

    assert found.status == "note"
    assert "seccomp" in found.mend


def test_a_gpu_without_a_name_says_what_serves_it() -> None:
    found = diagnosis(driver={**DRIVER, "devices": [{"name": "NVIDIA H20", "capability": [9, 0]}]})

    assert "h100, h200, gh200 serves it as borrowed" in item(found, "GPU 0").what
    assert stopped(found) == {}


def test_the_record_of_a_gpu_here_is_counted_or_its_absence_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "ssd_aot.doctor.gpus.shipped_folder", lambda: ROOT / "ssd_aot/tuning_records"
    )
    b200 = {"name": "NVIDIA B200", "capability": [10, 0]}

    records = [
        i for i in gpu_items(Probed.of({**DRIVER, "devices": [H200, b200, H200]}))
        if i.name == "tuning record"
    ]  # fmt: skip

    assert [record.status for record in records] == ["ok", "note"]
    assert re.search(r"\d+ launches measured on h200", records[0].what)
    assert records[1].mend == "ssd-aot tune --gpu b200"

    (tmp_path / "tuning").mkdir()
    (tmp_path / "tuning/h200.builtin.json").write_text("{")
    own = item(tuple(gpu_items(Probed.of(DRIVER))), "tuning record")
    assert own.status == "lacking"
    assert "tuning/h200.builtin.json" in own.found


# What breaks, by the modules in front of all others; what is told under the item.
BROKEN = {
    "raises": ("raise RuntimeError('libcudart.so.12: not found')", "libcudart.so.12: not found"),
    "exits": ("import sys; sys.exit(7)", "ends the process with code 7"),
    "crashes": ("import os; os.kill(os.getpid(), 11)", "ends the process: SIGSEGV"),
    "prints": ("print('{}', flush=True); raise ImportError('no')", "ImportError: no"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_modules_that_break_the_process_are_findings(case: str, tmp_path: Path) -> None:
    program, told = BROKEN[case]
    for name in ("torch", "triton"):
        (tmp_path / f"{name}.py").write_text(program)

    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    ended = elsewhere("doctor", "--json", "--for", "build", PYTHONPATH=path)

    assert ended.returncode == 3, ended.stderr
    assert ended.stderr == ""
    found = json.loads(ended.stdout)
    items = {i["name"]: i for i in found["items"]}
    assert found["purposes"]["build"] == {"ready": False, "lacks": ["torch", "triton"]}
    assert told in items["torch"]["found"]
    assert told in items["triton"]["found"]


def test_a_probe_that_never_answers_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("import time; time.sleep(60)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    answer = probe({"torch": ("torch",)}, allowed_s=0.5)["torch"]

    assert answer.trouble == "no answer in time, so it was stopped"


def test_without_a_python_to_ask_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")

    assert "cannot be run" in probe({"torch": ("torch",)})["torch"].trouble


LIBRARIES = {
    "not a library": ("", "invalid ELF header|file too short"),
    "without the calls": ("int nothing(void) { return 0; }", "undefined symbol: cuInit"),
    "an error": (
        "int cuInit(int f) { return 802; }"
        "int cuGetErrorString(int s, const char **t) { *t = \"not yet initialized\"; return 0; }",
        "error 802: not yet initialized",
    ),
    "a crash": ("int cuInit(int f) { return *(volatile int *)0; }", "ends the process: SIGSEGV"),
    "no device": (
        "int cuInit(int f) { return 0; }"
        "int cuDriverGetVersion(int *v) { *v = 12080; return 0; }"
        "int cuDeviceGetCount(int *n) { *n = 0; return 0; }",
        "no CUDA device",
    ),
}  # fmt: skip


@pytest.mark.skipif(shutil.which("cc") is None, reason="makes libraries with a C compiler")
@pytest.mark.parametrize("case", LIBRARIES)
def test_a_driver_library_that_is_broken_is_a_finding(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, told = LIBRARIES[case]
    library = tmp_path / "libcuda.so.1"
    if program:
        (tmp_path / "cuda.c").write_text(program)
        line = ["cc", "-O0", "-shared", "-fPIC", "-o", str(library), str(tmp_path / "cuda.c")]
        subprocess.run(line, check=True)
    else:
        library.touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))

    found = tuple(gpu_items(probe({"driver": ("driver",)})["driver"]))

    assert re.search(told, " ".join(i.found for i in found))
    assert {p for i in found for p in i.purposes} == {"tune", "serve"}


def test_a_fault_of_an_examination_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(examining, "probe", lambda names: dict.fromkeys(names, Probed({}, "no")))
    monkeypatch.setattr(shutil, "which", broken)
    monkeypatch.setattr(importlib.metadata, "version", broken)

    found = examining.examine({})

    assert "Input/output error" in item(found, "host").found
    assert item(found, "cores").status == "ok"
    assert item(found, "engines").what == ", ".join(f"{name} ?" for name in ENGINES)
    assert item(found, "bundle").status == "note"


def test_engines_and_extras_are_told_by_their_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name in ("vllm", "jinja2"):
            return "0.33.0"
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)

    found = tuple(package_items())

    assert item(found, "engines").what == "vllm 0.33.0"
    assert item(found, "extra report").found == "no matplotlib"
    assert item(found, "extra report").mend == "pip install 'ssd-aot[report]'"


def test_every_engine_and_every_extra_is_looked_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {
        name: tuple(re.split(r"[^A-Za-z0-9_-]", entry)[0] for entry in entries)
        for name, entries in project["optional-dependencies"].items()
        if name != "dev"
    }

    assert {engine(name).package for name in ENGINES} == set(ENGINES)
    assert EXTRAS.items() >= extras.items()


def test_no_engine_and_no_torch_is_imported_to_examine_a_host() -> None:
    program = (
        "import sys; from ssd_aot.doctor.examining import examine; examine()\n"
        "print([name for name in sys.argv[1:] if name in sys.modules])"
    )
    names = ["torch", "triton", *ENGINES]

    ended = subprocess.run(
        [sys.executable, "-c", program, *names],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert ended.stdout.strip() == "[]"


def variables_told(given: Mapping[str, str], compiled_into: Mapping[str, str]) -> list[Item]:
    return [i for i in host.host_items(given, compiled_into) if i.name.isupper()]


def test_variables_that_matter_are_shown_and_what_they_do() -> None:
    variables = {"TRITON_INTERPRET": "1", "PTXAS_OPTIONS": "-O2", "SSD_AOT_STRICT": "1", "A": "b"}

    found = variables_told(variables, {"PTXAS_OPTIONS": "-O2"})

    assert [i.name for i in found] == ["PTXAS_OPTIONS", "SSD_AOT_STRICT", "TRITON_INTERPRET"]
    assert "enters the identity" in found[0].what
    assert found[2].purposes == ("build", "tune")
    assert found[2].mend == "unset TRITON_INTERPRET"


def test_a_place_without_room_or_permission_stops_building(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    full = shutil.disk_usage(tmp_path)._replace(free=1234)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: full)

    crowded = item(tuple(host.host_items({}, {})), "bundle folder")
    monkeypatch.setattr(os, "access", lambda place, mode: False)
    closed = item(tuple(host.host_items({}, {})), "temporary folder")

    assert crowded.found == f"1,234 bytes free in {tmp_path}"
    assert closed.what == "cannot be written"
    assert crowded.purposes == closed.purposes == ("build", "tune")


def test_a_current_folder_that_is_gone_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    assert item(tuple(host.host_items({}, {})), "bundle folder").what == "cannot be used"


NAMES = {"a GPU it serves": ("NVIDIA B300", (10, 3)), "another GPU": ("NVIDIA L40S", (8, 9))}


@pytest.mark.parametrize("case", NAMES)
def test_the_bundle_in_service_is_held_to_the_gpu_here(case: str, three_targets: Path) -> None:
    device = DeviceFacts(*NAMES[case])

    (found,) = service.service_items({"SSD_AOT_BUNDLE": str(three_targets)}, [device])

    assert found.status == ("ok" if case == "a GPU it serves" else "lacking")
    assert found.purposes == (() if case == "a GPU it serves" else ("serve",))


def test_a_bundle_in_service_that_is_changed_or_foreign_or_gone_stops_serving(
    bundle_copy: Path, tmp_path: Path
) -> None:
    (bundle_copy / "extra").touch()
    foreign = write_small_bundle(tmp_path / "foreign").path

    for path, told in (
        (bundle_copy, "the bundle was changed"),
        (foreign, "another launch interface"),
        (tmp_path / "nothing", "no bundle can be read here"),
    ):
        (found,) = service.service_items({"SSD_AOT_BUNDLE": str(path)}, [])
        assert told in found.what
        assert found.purposes == ("serve",)
        assert found.mend


def test_an_engines_bundle_in_service_needs_its_toolchain(tmp_path: Path) -> None:
    bundle = write_small_bundle(tmp_path / "b", source="vllm")

    (found,) = service.service_items({"SSD_AOT_BUNDLE": str(bundle.path)}, [])

    assert found.what == "is for another toolchain"
    assert "toolchain.triton_content" in found.found
    assert "c" * 64 in found.wanted


@pytest.mark.parametrize(
    ("purposes", "code"), [((), 0), (("build",), 0), (("serve",), 3), (("build", "tune"), 3)]
)
def test_it_exits_3_where_what_it_is_asked_for_lacks_something(
    purposes: tuple[Purpose, ...], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = diagnosis(driver=ABSENT)
    monkeypatch.setattr(examining, "examine", lambda: found)

    result = ssd_aot("doctor", *(word for p in purposes for word in ("--for", p)))

    assert result.exit_code == code
    assert "serve    lacks CUDA driver" in result.stdout
    assert "build    ready" in result.stdout


def test_both_forms_tell_the_same_and_fit_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    long = {"trouble": "a very long reason, " * 40, "mend": "a very long mend, " * 20}
    monkeypatch.setattr(examining, "examine", lambda: diagnosis(torch=long))

    shown = ssd_aot("doctor").stdout
    data = json.loads(ssd_aot("doctor", "--json").stdout)

    assert max(map(len, shown.splitlines())) <= 80
    assert data["purposes"]["build"] == {"ready": False, "lacks": ["torch"]}
    assert [i["name"] for i in data["items"]][:2] == ["python", "torch"]
