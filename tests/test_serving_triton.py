"""An engine's kernels served to Triton: everything from the bundle and nothing compiled, wherever
the bundle lies and whatever the process lacks; what does not fit is refused by name."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import ROOT, ssd_aot
from driver_library import driver_library
from engine_bundles import (
    EVEN,
    ODD,
    ONE_MODEL,
    CallingEngine,
    build,
    of_toolchain,
    rewritten,
    scan,
    serving,
)
from forked import forked
from triton import knobs
from triton.runtime import cache as triton_cache
from triton.runtime.autotuner import Autotuner, Config

import ssd_aot as package
from ssd_aot.bundle.store import Bundle
from ssd_aot.errors import BundleError, HostError, MismatchError, MissingLaunchError, SsdAotError
from ssd_aot.runtime.engine_loading import LoadedEngineBundle
from ssd_aot.runtime.engine_warming import warm_up_engine
from ssd_aot.runtime.triton_service import SERVICE
from ssd_aot.runtime.warming import REHEARSALS
from ssd_aot.signatures import Signature
from ssd_aot.triton_compat import check_ptxas, toolchain
from ssd_aot.triton_compat.autotuned import launch_by_the_tuner, launch_directly
from ssd_aot.triton_compat.toolchain import triton_content

TESTS = Path(__file__).parent
OPERATION = "fixture_engine.operation"


@dataclass
class Served:
    """What Triton did: `compilations` it made, kernels it `found`, modules that were `loaded`."""

    op: Any
    loaded: list[str]
    compilations: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)

    def __call__(self, *signatures: Signature) -> None:
        for signature in signatures:
            scan(self.op, signature)

    def listen(self, *, metadata: dict[str, Any], cache_hit: bool, **_: Any) -> None:
        (self.found if cache_hit else self.compilations).append(metadata["name"])


@contextmanager
def serving_process(gpu: str = "h200") -> Iterator[Served]:
    """The engine imported, on a driver that refuses to measure, with Triton's listener heard."""
    with serving(gpu) as (op, driver):
        served = Served(op, driver.loaded)
        knobs.compilation.listener = served.listen
        yield served


def load(bundle: Path, **options: Any) -> LoadedEngineBundle:
    loaded = package.load(bundle, **options)
    assert isinstance(loaded, LoadedEngineBundle)
    return loaded


def refused(bundle: Path, **options: Any) -> SsdAotError | None:
    try:
        load(bundle, **options)
    except SsdAotError as error:
        return error
    return None


# Everything from the bundle


MOVED = """
import json, os, sys
from pathlib import Path
from test_serving_triton import EVEN, ODD, load, serving_process
from triton.backends.nvidia.driver import CudaUtils
import ssd_aot
with serving_process() as served:
    if os.getuid() == 0:
        os.setuid(54321)
    load(Path(sys.argv[1]))
    CudaUtils()
    served(EVEN, ODD)
print(json.dumps([served.compilations, served.found, ssd_aot.status()]))
"""


def test_moved_read_only_by_an_unknown_user_without_home_or_compiler_nothing_is_compiled(
    engine_bundle: Path,
) -> None:
    """C24, C45: strict, so that a compilation or a tuning would end the process."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        moved = Path(shutil.copytree(engine_bundle, Path(folder, "deep", "moved")))
        library = driver_library(engine_bundle, Path(folder))
        places = (moved, *moved.rglob("*"))
        for place in places:
            place.chmod(place.stat().st_mode & ~0o222)

        ended = subprocess.run(
            [sys.executable, "-c", MOVED, str(moved)],
            env={"PYTHONPATH": f"{ROOT}:{TESTS}", "PYTHONDONTWRITEBYTECODE": "1", "PATH": folder,
                 "SSD_AOT_STRICT": "1", "LD_LIBRARY_PATH": str(library)},
            cwd="/", capture_output=True, text=True, check=False,
        )  # fmt: skip

        for place in places:
            place.chmod(0o755)
    assert ended.returncode == 0, ended.stderr
    compilations, found, status = json.loads(ended.stdout)
    assert compilations == []
    assert len(found) == 11
    assert status["misses"] == {}
    assert sum(n for name, n in status["hits"].items() if name.endswith(".autotune.json")) == 4
    assert [name.partition(".")[0] for name in status["hits"] if name.endswith(".so")] == [
        "cuda_utils"
    ]
    assert "never used" not in ended.stderr


def test_another_gpu_of_the_same_architecture_is_served(engine_bundle: Path) -> None:
    def work() -> None:
        with serving_process("h100") as served:
            load(engine_bundle, strict=True)
            served(EVEN, ODD)
            assert len(served.found) == 11

    forked(work)


def test_a_gpu_of_another_architecture_is_refused_once_it_is_known(engine_bundle: Path) -> None:
    """C28: `load` itself touches no GPU."""

    def work() -> None:
        with serving_process("b200") as served:
            error = refused(engine_bundle, warm=True, strict=True)
            assert isinstance(error, MismatchError)
            assert "compute capability 10.0" in error.found
            assert "h200 (9.0)" in error.wanted
            # As if nobody had asked.
            assert served.loaded == [] and SERVICE.served == [] and not SERVICE.strict
            assert "TRITON_CACHE_MANAGER" not in os.environ

    forked(work)


FROM_THE_ENVIRONMENT = """
import sys
from test_serving_triton import EVEN, ODD, serving_process
with serving_process() as served:
    served(EVEN)
    first = len(served.found)
    served(ODD)
assert not any(name.startswith("ssd_aot.runtime.loading") for name in sys.modules)
print(served.compilations, first, len(served.found))
"""


def python(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{TESTS}", **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_child_that_is_started_afresh_is_served_by_the_environment_of_its_parent(
    engine_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent gave a path relative to a folder that neither is in any more."""

    def work() -> tuple[int, str, str]:
        os.chdir(engine_bundle.parent)
        load(Path(engine_bundle.name))
        os.chdir(tmp_path)
        names = ("TRITON_CACHE_MANAGER", "TRITON_CACHE_AUTOTUNING", "SSD_AOT_BUNDLE")
        assert all(os.environ[name] for name in names)
        ended = python(FROM_THE_ENVIRONMENT, SSD_AOT_STRICT="1")
        return ended.returncode, ended.stdout, ended.stderr

    monkeypatch.delenv("SSD_AOT_BUNDLE", raising=False)
    code, stdout, stderr = forked(work)

    assert code == 0, stderr
    assert stdout == "[] 7 11\n"
    assert "never used" not in stderr


def test_a_child_that_is_forked_is_served(engine_bundle: Path) -> None:
    def child() -> list[str]:
        with serving_process() as served:
            served(EVEN)
            return served.found

    def work() -> None:
        load(engine_bundle, strict=True)
        assert len(forked(child)) == 7

    forked(work)


def test_the_first_kernel_of_a_model_brings_the_others_of_that_model_with_it(
    engine_bundle: Path,
) -> None:
    """By the environment, as vLLM's workers load: no device is touched before."""

    def work() -> None:
        with serving_process() as served:
            served.op.run_strided(EVEN.nheads)
            assert sorted(set(served.loaded)) == [
                "added", "by_heuristic", "copied", "pruned", "strided", "unspecialised",
            ]  # fmt: skip
            assert len(served.loaded) == 7
            served.found.clear()
            served(EVEN)
            assert served.found == []
            served(ODD)
            assert len(served.loaded) == 11

    forked(
        work,
        SSD_AOT_BUNDLE=str(engine_bundle),
        TRITON_CACHE_MANAGER="ssd_aot.runtime.triton_cache:BundleCacheManager",
        TRITON_CACHE_AUTOTUNING="1",
    )


# Warm


def test_a_warm_load_leaves_nothing_to_look_up(engine_bundle: Path) -> None:
    def work() -> None:
        with serving_process() as served:
            load(engine_bundle, strict=True, warm=True)
            assert len(served.loaded) == 11
            found, hits = len(served.found), SERVICE.hits.copy()

            served(EVEN, ODD)

            assert len(served.loaded) == 11
            assert len(served.found) == found
            # What a tuner that prunes has to choose from is known with the launch alone.
            assert SERVICE.hits - hits == {"pruned.autotune.json": 2}

    forked(work)


def test_a_load_with_a_device_in_use_leaves_modules_to_load_and_nothing_to_look_up(
    engine_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> None:
        with serving_process() as served:
            monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
            load(engine_bundle, strict=True)
            assert served.loaded == []
            found = len(served.found)

            served(EVEN, ODD)

            assert len(served.loaded) == 11
            assert len(served.found) == found

    forked(work)


def test_what_was_looked_up_before_is_loaded_by_a_warm_load(
    engine_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> None:
        with serving_process() as served:
            monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
            load(engine_bundle)
            load(engine_bundle, warm=True)
            assert len(served.loaded) == 11

    forked(work)


def test_a_warm_up_calls_the_operation_under_every_signature_once_it_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[Signature] = []
    engine = CallingEngine(lambda op, signature: called.append(signature))
    monkeypatch.setattr("ssd_aot.engines.engine.engine", lambda name: engine)
    models = [replace(EVEN, model="one"), replace(EVEN, model="two"), ODD]

    warm_up_engine("vllm", models, torch.device("cpu"))
    assert called == []
    monkeypatch.setattr(engine, "_operation", object())
    warm_up_engine("recording", models, torch.device("cpu"))
    assert called == []
    warm_up_engine("vllm", models, torch.device("cpu"))

    assert {signature.nheads for signature in called} == {32, 33}
    # Of each geometry two lengths twice, aligned and not, and the last one rehearsed as two layers.
    assert len(called) == 2 * (4 * 2 + 2 * REHEARSALS)


def test_the_first_launch_does_not_wait_for_tritons_files_to_be_hashed(
    engine_bundle: Path,
) -> None:
    def work() -> None:
        triton_cache.triton_key.cache_clear()
        load(engine_bundle)
        assert triton_cache.triton_key.cache_info().currsize == 1

    forked(work)


def test_a_warm_load_of_a_model_loads_what_is_its(engine_bundle: Path) -> None:
    def work() -> None:
        with serving_process() as served:
            load(engine_bundle, models=["odd"], warm=True)
            assert len(served.loaded) == 7
            assert served.op.copied.cache.keys() == {
                (size, "torch.bfloat16", "torch.bfloat16") for size in (32, 33)
            }

    forked(work)


def test_a_warm_load_takes_no_kernel_for_another_of_its_name(engine_bundle: Path) -> None:
    """As when the engine was replaced: nothing is compiled to find out."""

    def work() -> None:
        with serving_process() as served:
            served.op.strided._unsafe_update_src(served.op.strided.src.replace("0.0", "1.0"))
            del served.op.added
            load(engine_bundle, warm=True)
            assert "strided" not in served.loaded
            assert "added" not in served.loaded
            assert len(served.loaded) == 7
            assert served.compilations == []

    forked(work)


@pytest.mark.parametrize("warm", [False, True])
def test_a_choice_among_other_candidates_is_never_taken(engine_bundle: Path, warm: bool) -> None:
    """C33: the engine's new version has one more."""

    def work() -> None:
        with serving_process() as served:
            served.op.copied.configs.append(Config({"BLOCK": 64}))
            with pytest.raises(MissingLaunchError) as caught:
                load(engine_bundle, strict=True, warm=warm)
                served.op.run_copied(32)
            assert caught.value.where == f"{OPERATION}:copied"
            assert served.op.copied.cache == {}

    forked(work)


# What is not covered


def test_what_no_bundle_has_is_refused_in_strict_mode_by_name(engine_bundle: Path) -> None:
    def work() -> None:
        with serving_process() as served:
            load(engine_bundle, strict=True)
            with pytest.raises(MissingLaunchError) as caught:
                served.op.run_strided(1)
            assert caught.value.where == f"{OPERATION}:strided"
            assert str(engine_bundle) in caught.value.wanted
            assert served.compilations == []

    forked(work)


def test_what_no_bundle_has_goes_to_tritons_own_cache_and_is_counted(
    engine_bundle: Path, tmp_path: Path
) -> None:
    before = sorted(engine_bundle.rglob("*"))

    def work() -> dict[str, Any]:
        with serving_process() as served:
            load(engine_bundle)
            served.op.run_strided(1)
            served(EVEN)
            status = package.status()
            return {"compiled": served.compilations, "misses": status["misses"]}

    environment = {"TRITON_CACHE_DIR": str(tmp_path / "cache")}
    assert forked(work, **environment) == {"compiled": ["strided"], "misses": {"strided.json": 1}}
    assert forked(work, **environment) == {"compiled": [], "misses": {}}
    assert len(list((tmp_path / "cache").glob("*/__grp__strided.json"))) == 1
    assert sorted(engine_bundle.rglob("*")) == before


def test_a_cache_folder_that_changes_after_load_changes_nothing_and_is_told(
    engine_bundle: Path, tmp_path: Path
) -> None:
    """C31: vLLM and torch set it."""

    def work() -> None:
        with serving_process() as served:
            load(engine_bundle, strict=True)
            assert package.status()["changed"] == []
            os.environ["TRITON_CACHE_DIR"] = str(tmp_path / "later")
            served(EVEN, ODD)
            assert len(served.found) == 11
            (changed,) = package.status()["changed"]
            assert "TRITON_CACHE_DIR" in changed
            assert str(tmp_path / "later") in changed
            assert not (tmp_path / "later").exists()

    forked(work)


@pytest.mark.parametrize("folder", ["", "relative/cache"])
def test_an_odd_cache_folder_does_not_matter_to_what_the_bundle_has(
    folder: str, engine_bundle: Path, tmp_path: Path
) -> None:
    """C25."""

    def work() -> None:
        os.chdir(tmp_path)
        with serving_process() as served:
            load(engine_bundle, strict=True)
            served(EVEN, ODD)
            assert len(served.found) == 11

    forked(work, TRITON_CACHE_DIR=folder)
    assert list(tmp_path.iterdir()) == []


def test_no_path_relative_to_the_working_folder_is_stored(
    engine_bundle: Path, tmp_path: Path
) -> None:
    """C25."""

    def work() -> None:
        os.chdir(tmp_path)
        with serving_process() as served:
            load(engine_bundle)
            served.op.run_strided(1)

    forked(work, TRITON_CACHE_DIR="relative/cache")
    (group,) = tmp_path.glob("relative/cache/*/__grp__strided.json")
    paths = json.loads(group.read_text())["child_paths"].values()
    assert all(Path(path).is_file() and Path(path).is_absolute() for path in paths)


UNUSABLE: dict[str, Callable[[Path], str]] = {
    "empty": lambda folder: "",
    "a file": lambda folder: str(folder / "file"),
    "below a file": lambda folder: str(folder / "file" / "cache"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_without_a_place_for_it_a_compilation_is_told_by_its_kernel(
    case: str, engine_bundle: Path, tmp_path: Path
) -> None:
    """C24, C25: the missing kernel is what matters, not a permission."""
    (tmp_path / "file").write_text("")

    def work() -> None:
        with serving_process() as served:
            load(engine_bundle)
            served(EVEN)
            with pytest.raises(HostError) as caught:
                served.op.run_strided(1)
            assert caught.value.where.startswith("strided.")
            assert str(engine_bundle) in caught.value.wanted
            assert "TRITON_CACHE_DIR" in caught.value.found

    forked(work, TRITON_CACHE_DIR=UNUSABLE[case](tmp_path))


# Tuning at serve time


def test_all_candidates_can_be_measured_at_serve_time_and_none_is_compiled(tmp_path: Path) -> None:
    """One that does not fit the GPU is there as well: Triton finds and refuses it."""
    times = iter((3.0, 1.0))

    def fits_only(function: Any, variant: Any, target: Any, key: str) -> Any:
        from ssd_aot.triton_compat import compile_entry

        made = compile_entry(function, variant, target, key)
        if dict(variant.configuration.constexprs).get("BLOCK") == 32 and target.name == "h200":
            return made.__class__(
                made.cubin,
                made.code.__class__(**{**vars(made.code), "shared_bytes": 300000}),
                made.metadata,
            )
        return made

    with pytest.MonkeyPatch.context() as patch:
        build(tmp_path / "whole", ONE_MODEL, tune_at_serve=True)
        patch.setattr("ssd_aot.compilation.compiling.compile_entry", fits_only)
        report = build(tmp_path / "unfit", ONE_MODEL, tune_at_serve=True)
    assert len(report.dropped) == 2

    def work(bundle: Path) -> list[str]:
        with serving_process() as served:
            load(bundle)
            measured: list[float] = []

            def measure(call: Callable[[], object], quantiles: Any) -> list[float]:
                call()
                measured.append(next(times))
                return [measured[-1]] * 3

            served.op.copied._do_bench = measure
            served.op.run_copied(32)
            assert measured == [3.0, 1.0]
            assert served.op.copied.best_config.kwargs == {"BLOCK": 32}
            return served.compilations

    nowhere = {"TRITON_CACHE_DIR": "/dev/null"}
    assert forked(work, tmp_path / "whole", **nowhere) == []
    assert forked(work, tmp_path / "unfit", **nowhere) == []


# Identity


PARTS = {
    "triton_content": ("0" * 64, r"files [0-9a-f]{64} \(this host\)"),
    "ptxas_version": ("ptxas 11.0.1, ptxas-blackwell 11.0.1", r"ptxas 1[23][\d.]+"),
    "python_abi": ("cpython-310-x86_64-linux-gnu", "cpython-3"),
    "platform": ("linux-riscv64", "linux-"),
    "environment": ((("DISABLE_LLVM_OPT", "1"),), "DISABLE_LLVM_OPT unset"),
}


@pytest.mark.parametrize("part", PARTS)
def test_another_toolchain_is_refused_by_the_part_that_differs(
    part: str, engine_bundle: Path, tmp_path: Path
) -> None:
    """C29, C30: in one line, and before anything is in service."""
    value, found = PARTS[part]
    other = of_toolchain(engine_bundle, tmp_path / "b", **{part: value})

    def work() -> None:
        error = refused(other)
        assert isinstance(error, MismatchError)
        first_line = str(error).splitlines()[0]
        assert f"differs in toolchain.{part}" in first_line
        assert [p for p in PARTS if p in first_line] == [part]
        assert re.search(found, error.found)
        assert SERVICE.served == []
        assert "TRITON_CACHE_MANAGER" not in os.environ

    forked(work, TRITON_CACHE_MANAGER=None)


def test_another_platform_is_named_before_what_it_entails(
    engine_bundle: Path, tmp_path: Path
) -> None:
    """C29: Triton for aarch64 has other files, too."""
    other = of_toolchain(
        engine_bundle, tmp_path / "b", platform="linux-aarch64", triton_content="0" * 64
    )

    error = refused(other)

    assert isinstance(error, MismatchError)
    assert "differs in toolchain.platform (and in triton_content)" in str(error).splitlines()[0]
    assert "linux-aarch64 (the bundle)" in error.wanted


VARIABLES = {
    "DISABLE_LLVM_OPT": ("1", "true"),
    "MLIR_DISABLE_MULTITHREADING": ("1", "true"),
    "TRITON_DEBUG": ("1", "true"),
    "TRITON_DEFAULT_FP_FUSION": ("0", "false"),
    "TRITON_DISABLE_LINE_INFO": ("1", "true"),
    "TRITON_INSTRUMENTATION_MODE": ("fpsan", "fpsan"),
}


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_that_triton_keys_by_is_named_with_its_value(
    name: str, engine_bundle: Path
) -> None:
    value, spelled = VARIABLES[name]

    def work() -> None:
        knobs.refresh_knobs()
        error = refused(engine_bundle)
        assert isinstance(error, MismatchError)
        assert error.found == f"{name}={spelled} (this host)"
        assert error.wanted == f"{name} unset (the bundle)"

    forked(work, **{name: value})


@pytest.mark.parametrize("name", VARIABLES)
def test_a_bundle_is_made_and_served_under_the_same_variables(name: str, tmp_path: Path) -> None:
    def work() -> None:
        knobs.refresh_knobs()
        build(tmp_path / "b", ONE_MODEL)
        with serving_process() as served:
            load(tmp_path / "b", strict=True, warm=True)
            served(EVEN)
            assert len(served.loaded) == 7

    forked(work, **{name: VARIABLES[name][0]})


def test_the_same_triton_under_another_version_string_is_the_same(tmp_path: Path) -> None:
    """C30: its own keys hold the string."""

    def make() -> None:
        modules: tuple[Any, ...] = (triton_cache, sys.modules["triton"])
        for module in modules:
            module.__version__ = "3.7.1+git0123abc"
        triton_cache.triton_key.cache_clear()
        build(tmp_path / "b", ONE_MODEL)

    def work() -> None:
        with serving_process() as served:
            load(tmp_path / "b", strict=True)
            served(EVEN)
            assert len(served.found) == 7

    forked(make)
    assert Bundle.open(tmp_path / "b").manifest.toolchain.triton_version == "3.7.1+git0123abc"
    forked(work)


@pytest.mark.parametrize("suffix", [".cubin", ".json", ".so"])
@pytest.mark.parametrize("change", ["cut short", "flipped"])
def test_a_damaged_file_is_refused_at_load_and_named(
    suffix: str, change: str, engine_bundle: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(engine_bundle, tmp_path / "b"))
    file = sorted((copy / "objects").glob(f"*{suffix}"))[0]
    data = file.read_bytes()
    file.write_bytes(data[:-1] if change == "cut short" else bytes([data[0] ^ 1]) + data[1:])

    error = refused(copy)

    assert isinstance(error, BundleError)
    assert file.name in error.found
    assert SERVICE.served == []


def _no_tool(number: int) -> Any:
    raise RuntimeError("Cannot find ptxas")


_config_var = sysconfig.get_config_var


def _without_soabi(name: str) -> Any:
    return None if name == "SOABI" else _config_var(name)


TOOLCHAIN = sys.modules[toolchain.__module__]
UNREADABLE: dict[str, tuple[Any, str, Any]] = {
    "a file of Triton": (TOOLCHAIN, "_content_files", lambda root: [root / "no-such-file.py"]),
    "Python's ABI": (sysconfig, "get_config_var", _without_soabi),
    "an assembler": (sys.modules[check_ptxas.__module__], "get_ptxas", _no_tool),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_an_identity_that_cannot_be_read_is_fatal_to_load_and_to_build(
    case: str, engine_bundle: Path, tmp_path: Path
) -> None:
    """C46: nothing is made up in its place."""
    module, name, answer = UNREADABLE[case]

    def work() -> None:
        triton_content.cache_clear()
        setattr(module, name, answer)
        assert isinstance(refused(engine_bundle), HostError)
        assert SERVICE.served == []
        with pytest.raises(HostError):
            build(tmp_path / "b", ONE_MODEL)

    forked(work)
    assert not (tmp_path / "b").exists()


def test_an_unreadable_file_behind_a_variable_is_fatal(
    engine_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C46."""
    library = tmp_path / "libdevice.bc"
    library.symlink_to(library)
    monkeypatch.setenv("TRITON_LIBDEVICE_PATH", str(library))

    error = refused(engine_bundle)

    assert isinstance(error, HostError)
    assert error.where == f"TRITON_LIBDEVICE_PATH={library}"


# What is said


def test_the_status_counts_hits_and_misses_by_file(engine_bundle: Path, tmp_path: Path) -> None:
    def work() -> None:
        with serving_process() as served:
            load(engine_bundle)
            served(EVEN)
            served.op.run_strided(1)
            status = package.status()
        assert status["bundles"] == [
            {
                "path": str(engine_bundle),
                "digest": Bundle.open(engine_bundle).digest,
                "source": "vllm",
            }
        ]
        assert status["hits"] == {
            "added": 2, "by_heuristic": 1, "copied": 1, "copied.autotune.json": 1, "pruned": 1,
            "pruned.autotune.json": 1, "strided": 1, "unspecialised": 1,
        }  # fmt: skip
        assert status["misses"] == {"strided.json": 1}
        assert status["changed"] == []

    forked(work, TRITON_CACHE_DIR=str(tmp_path))


def test_the_status_says_when_triton_was_told_to_look_elsewhere(engine_bundle: Path) -> None:
    def work() -> None:
        load(engine_bundle)
        knobs.cache.manager_class = triton_cache.FileCacheManager
        knobs.autotuning.cache = False
        manager, results = package.status()["changed"]
        assert "FileCacheManager" in manager
        assert "TRITON_CACHE_AUTOTUNING" in results

    forked(work)


def test_the_status_says_when_the_bundle_is_gone(engine_bundle: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(engine_bundle, tmp_path / "b"))

    def work() -> None:
        load(copy)
        shutil.rmtree(copy)
        assert package.status()["changed"] == [f"{copy} is gone"]

    forked(work)


def test_a_bundle_that_was_never_asked_for_a_kernel_is_told_at_exit(
    engine_bundle: Path, tmp_path: Path
) -> None:
    """A host module, which any program with Triton wants, is no kernel."""
    program = (
        "import sys, ssd_aot; ssd_aot.load(sys.argv[1])\n"
        "from triton.backends.nvidia.driver import CudaUtils; CudaUtils()\n"
    )
    library = driver_library(engine_bundle, tmp_path)

    ended = python(program, str(engine_bundle), LD_LIBRARY_PATH=str(library))

    assert ended.returncode == 0, ended.stderr
    assert f"ssd-aot: {engine_bundle} was loaded and never used" in ended.stderr


def test_a_second_load_of_the_same_bundle_changes_nothing(engine_bundle: Path) -> None:
    def work() -> None:
        load(engine_bundle)
        load(engine_bundle, strict=True)
        load(engine_bundle)
        assert len(SERVICE.served) == 1
        assert package.status()["strict"], "once asked for, it stays"

    forked(work)


# Host modules


def test_a_host_module_is_found_by_its_name_and_source_whatever_its_key(
    engine_bundle: Path,
) -> None:
    """Triton's key for it holds the host's folders and whether `file` is installed."""

    def work() -> None:
        load(engine_bundle)
        from ssd_aot.runtime.triton_cache import BundleCacheManager
        from ssd_aot.triton_compat import EXTENSION_SUFFIX

        some_key = triton_cache._base32("5e" * 32)
        found = BundleCacheManager(some_key).get_file(f"cuda_utils{EXTENSION_SUFFIX}")
        assert found is not None
        assert Path(found).parent == engine_bundle / "objects"
        assert BundleCacheManager(some_key).get_file("cuda_utils.cpython-27.so") is None
        assert BundleCacheManager(some_key).get_file(f"other{EXTENSION_SUFFIX}") is None

    forked(work)


def test_a_host_module_of_another_source_is_not_served(
    engine_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ssd_aot.triton_compat import EXTENSION_SUFFIX, HostSource

    monkeypatch.setattr(
        "ssd_aot.triton_compat.driver_source",
        lambda: HostSource("cuda_utils", "another text", keyed_by_source=True),
    )

    def work() -> None:
        load(engine_bundle)
        from ssd_aot.runtime.triton_cache import BundleCacheManager

        manager = BundleCacheManager(triton_cache._base32("5e" * 32))
        assert manager.get_file(f"cuda_utils{EXTENSION_SUFFIX}") is None

    forked(work)


# Launching directly


def launched_keys(op: Any) -> list[Any]:
    """The kernels that launches take, by the keys under which the process has them."""
    taken = []
    run = op.copied.fn.run

    def spy(*arguments: Any, **named: Any) -> Any:
        kernel = run(*arguments, **named)
        taken.append(kernel.hash)
        return kernel

    op.copied.fn.run = spy
    return taken


def test_a_direct_launch_takes_the_kernel_that_the_tuner_takes(engine_bundle: Path) -> None:
    def work() -> None:
        with serving_process() as served:
            load(engine_bundle, strict=True)
            op, taken = served.op, launched_keys(served.op)
            calls = [(op.meta(n + at)[at:], op.meta(n), n) for n in (32, 33) for at in (0, 8)]

            def launch_all() -> list[Any]:
                taken.clear()
                for x, y, n in calls:
                    for _ in range(3):
                        op.copied[(1,)](x, y, n)
                        op.copied[(1,)](x, y_ptr=y, n=n)
                        op.copied[lambda meta: (meta["BLOCK"],)](x_ptr=x, y_ptr=y, n=n)
                return [*taken, op.copied.best_config]

            launch_by_the_tuner()
            by_the_tuner = launch_all()
            launch_directly()
            assert Autotuner.run is not None
            assert launch_all() == by_the_tuner
            assert launch_all() == by_the_tuner, "once remembered, too"
            assert len(by_the_tuner) == 37

    forked(work)


def test_a_direct_launch_does_not_ask_the_tuner_again(engine_bundle: Path) -> None:
    def work() -> None:
        with serving_process() as served:
            load(engine_bundle, strict=True)
            served.op.run_copied(32)
            served.op.copied.cache.clear()
            served.op.copied.configs.clear()
            served.op.run_copied(32)

    forked(work)


def test_arguments_that_are_no_part_of_the_key_are_not_remembered(engine_bundle: Path) -> None:
    """A server's token counts would fill its memory."""

    def work() -> None:
        with serving_process() as served:
            load(engine_bundle)
            op = served.op
            op.copied.keys = []
            op.copied.cache_results = False
            op.copied._do_bench = lambda call, quantiles: [1.0] * 3
            for n in range(32, 132):
                op.copied[(1,)](op.meta(n), op.meta(n), n)
                op.copied[(1,)](op.meta(n), y_ptr=op.meta(n), n=n)
            remembered, _ = op.copied._ssd_aot_choices
            assert len(remembered) == 2

    forked(work, TRITON_CACHE_DIR=tempfile.mkdtemp(dir=os.environ.get("TMPDIR")))


def test_a_key_that_cannot_be_hashed_is_the_tuners_own_affair(engine_bundle: Path) -> None:
    def work() -> None:
        with serving_process() as served:
            load(engine_bundle)
            with pytest.raises(TypeError, match="unhashable"):
                served.op.copied[(1,)](served.op.meta(32), served.op.meta(32), [32])

    forked(work)


def test_a_pre_hook_sees_each_launch(tmp_path: Path) -> None:
    """C57."""
    build(tmp_path / "b", ONE_MODEL, calls=lambda op, signature: op.run_hooked())

    def work() -> None:
        with serving_process() as served:
            load(tmp_path / "b")
            served.op.hooked._do_bench = lambda call, quantiles: [1.0] * 3
            for _ in range(4):
                served.op.run_hooked()
            assert len(served.op.HOOKED) == 4
            assert served.compilations == []

    forked(work)


# Without ssd_aot


EXPORTED = """
import json, sys, types
from unittest import mock
import torch
from triton.runtime.driver import driver
from triton.backends.compiler import GPUTarget
from triton import knobs

class Driver:
    launcher_cls = lambda self, source, metadata: lambda *arguments: None
    utils = property(lambda self: self)
    get_current_target = lambda self: GPUTarget("cuda", 90, 32)
    get_current_device = lambda self: 0
    get_current_stream = lambda self, device: 0
    get_device_properties = lambda self, device: {"max_shared_mem": 232448}
    load_binary = lambda self, *arguments: (1, 1, 0, 0, 1024)

driver.set_active(Driver())
heard = []
knobs.compilation.listener = lambda cache_hit, **_: heard.append(cache_hit)
import fixture_engine.operation as op
torch.cuda.device = lambda *_: mock.MagicMock()
torch.get_device_module = lambda *_: torch.cuda
for heads in (32, 33):
    op.run_copied(heads)
    op.run_pruned(heads)
    op.run_by_heuristic(heads)
    op.run_unspecialised(heads)
    op.run_strided(heads)
from triton.backends.nvidia.driver import CudaUtils
CudaUtils()
assert not any(name.partition(".")[0] == "ssd_aot" for name in sys.modules)
print(json.dumps(heard))
"""


def test_an_exported_cache_serves_at_its_final_path_without_this_package(
    engine_bundle: Path, tmp_path: Path
) -> None:
    final, library = tmp_path / "final" / "cache", driver_library(engine_bundle, tmp_path)

    ended = ssd_aot("export", engine_bundle, "--triton-cache", tmp_path / "cache", "--at", final)
    assert ended.exit_code == 0, ended.stderr
    assert f"11 kernels, 4 tuning results and 1 host modules, for TRITON_CACHE_DIR={final}" in (
        ended.stdout
    )
    final.parent.mkdir()
    (tmp_path / "cache").rename(final)
    before = sorted(final.rglob("*"))

    served = subprocess.run(
        [sys.executable, "-c", EXPORTED],
        env={"PYTHONPATH": str(TESTS), "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/nowhere",
             "TRITON_CACHE_DIR": str(final), "TRITON_CACHE_AUTOTUNING": "1",
             "LD_LIBRARY_PATH": str(library)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert served.returncode == 0, served.stderr
    assert json.loads(served.stdout) == [True] * 9
    assert sorted(final.rglob("*")) == before


def test_an_export_says_which_host_modules_the_serving_host_will_have_to_build(
    engine_bundle: Path, tmp_path: Path
) -> None:
    """From 3.8.0 on Triton's key for them holds the folders of that host."""
    files = Bundle.open(engine_bundle).manifest.triton
    assert files is not None
    keyless = replace(files, host_modules=tuple(replace(m, keys=()) for m in files.host_modules))
    other = rewritten(engine_bundle, tmp_path / "b", triton=keyless)

    ended = ssd_aot("export", other, "--triton-cache", tmp_path / "cache")

    assert ended.exit_code == 0, ended.stderr
    assert "cuda_utils is not among them" in ended.stderr
    assert "0 host modules" in ended.stdout
    assert list((tmp_path / "cache").rglob("*.so")) == []


EXPORTS_REFUSED = {
    "a relative final path": (("--at", "cache"), "Triton's group files hold absolute paths"),
    "a folder with files": ((), "the output exists"),
}


@pytest.mark.parametrize("case", EXPORTS_REFUSED)
def test_an_export_that_could_not_serve_or_would_cost_files_is_refused(
    case: str, engine_bundle: Path, tmp_path: Path
) -> None:
    more, complaint = EXPORTS_REFUSED[case]
    if not more:
        (tmp_path / "file").write_text("")

    ended = ssd_aot("export", engine_bundle, "--triton-cache", tmp_path, *more)

    assert ended.exit_code == 2
    assert complaint in ended.stderr


def test_builtin_kernels_have_no_place_in_tritons_cache(
    three_targets: Path, tmp_path: Path
) -> None:
    ended = ssd_aot("export", three_targets, "--triton-cache", tmp_path / "cache")

    assert ended.exit_code == 2
    assert "source builtin" in ended.stderr
    assert not (tmp_path / "cache").exists()


def test_a_changed_bundle_is_not_exported(engine_bundle: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(engine_bundle, tmp_path / "b"))
    next((copy / "objects").glob("*.cubin")).write_bytes(b"")

    ended = ssd_aot("export", copy, "--triton-cache", tmp_path / "cache")

    assert ended.exit_code == 1
    assert not (tmp_path / "cache").exists()


# The lines of an image


def test_the_lines_for_an_image_name_the_bundle_and_pin_it(engine_bundle: Path) -> None:
    ended = ssd_aot("env", engine_bundle, "--at", "/opt/kernels")

    lines = ended.stdout.splitlines()
    assert "ENV SSD_AOT_BUNDLE=/opt/kernels" in lines
    assert f"ENV SSD_AOT_DIGEST={Bundle.open(engine_bundle).digest}" in lines
    assert not any("TRITON_CACHE_MANAGER" in line for line in lines), "vLLM has the plug-in"


def test_an_engine_without_plug_ins_is_told_of_tritons_own_variables(
    engine_bundle: Path, tmp_path: Path
) -> None:
    source = Bundle.open(engine_bundle).manifest.source
    other = rewritten(
        engine_bundle, tmp_path / "b", source=source.__class__("sglang", "0.5.23", source.kernels)
    )

    lines = ssd_aot("env", other).stdout.splitlines()

    assert "ENV TRITON_CACHE_MANAGER=ssd_aot.runtime.triton_cache:BundleCacheManager" in lines
    assert "ENV TRITON_CACHE_AUTOTUNING=1" in lines


def test_the_lines_for_builtin_kernels_ask_for_them(three_targets: Path) -> None:
    assert "ENV SSD_AOT_KERNELS=builtin" in ssd_aot("env", three_targets).stdout.splitlines()
