"""What Triton would make of a value, and what becomes of a variant."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import fixture_kernels
import pytest
import torch
import triton

from ssd_aot.bundle.elf import cubin_architecture, same_architecture
from ssd_aot.bundle.manifest import Toolchain
from ssd_aot.errors import BuildError, HostError
from ssd_aot.launches import Argument, Configuration, Constant, Launch, Variant
from ssd_aot.targets import Target
from ssd_aot.triton_compat import (
    check_ptxas,
    compile_variant,
    describe_argument,
    describe_launch,
    kernel_function,
    layout_can_be_fixed,
    same_toolchain,
    source_hash,
    toolchain,
)
from ssd_aot.triton_compat.toolchain import triton_content

H100 = Target("h100", "sm_90a", (9, 0), 232448, 132)
B200 = Target("b200", "sm_100a", (10, 0), 232448, 148)
B300 = Target("b300", "sm_103a", (10, 3), 232448, 148)
TESTS = Path(__file__).parent


def add_one(**changed: str) -> Launch:
    kinds = {"x_ptr": "*fp32 aligned", "y_ptr": "*fp32 aligned", "n": "i32 other"}
    kinds |= {"stride": "i32 ==1"} | changed
    arguments = tuple(Argument.parse(name, kind) for name, kind in kinds.items())
    return Launch("add_one", (("BLOCK", 256),), arguments)


def configured(launch: Launch, warps: int = 4, **constexprs: Constant) -> Variant:
    return Variant(launch, Configuration(tuple(sorted(constexprs.items())), warps, 3))


MATMUL = configured(
    Launch(
        "matmul",
        (),
        (
            Argument("a_ptr", "*bf16", "aligned"),
            Argument("b_ptr", "*bf16", "aligned"),
            Argument("c_ptr", "*bf16", "aligned"),
            Argument("n", "i32", "other"),
        ),
    ),
    BLOCK=64,
)


# What Triton makes of a value


@pytest.mark.parametrize(
    ("value", "spelled"),
    [
        (1, "i32 ==1"),
        (0, "i32 %16"),
        (16, "i32 %16"),
        (17, "i32 other"),
        (-16, "i32 %16"),
        (2**31 - 1, "i32 other"),
        (2**31, "i64 %16"),
        (2**31 + 1, "i64 other"),
        (True, "u1"),
        (0.5, "fp32"),
        (1.0, "fp32"),
        (None, "none"),
        (torch.zeros(64, dtype=torch.bfloat16), "*bf16 aligned"),
        (torch.zeros(64, dtype=torch.bfloat16)[1:], "*bf16 unaligned"),
        (torch.zeros(64, dtype=torch.bfloat16)[8:], "*bf16 aligned"),
    ],
)
def test_a_value_has_the_type_and_class_that_triton_gives_it(value: Any, spelled: str) -> None:
    assert describe_argument("a", value).spelled() == spelled


def test_an_argument_that_is_not_specialised_is_of_the_class_that_assumes_nothing() -> None:
    assert describe_argument("n", 1, specialise=False).spelled() == "i32 other"
    assert describe_argument("n", 16, align=False).spelled() == "i32 other"


@pytest.mark.parametrize("value", ["text", (1, 16), torch.float32])
def test_a_value_that_no_launch_can_carry_is_refused_by_name(value: Any) -> None:
    with pytest.raises(BuildError, match=r"^scale: "):
        describe_argument("scale", value)


def test_strides_16_1_and_17_are_three_launches_and_each_prints_its_class() -> None:
    x = torch.zeros(1024)
    launches = [
        describe_launch(fixture_kernels.add_one, x, x, 100, stride, BLOCK=64)
        for stride in (16, 1, 17)
    ]

    assert len({launch.identity for launch in launches}) == 3
    printed = [re.search(r"stride: (.*)\)", str(launch)) for launch in launches]
    assert [found and found[1] for found in printed] == ["i32 %16", "i32 ==1", "i32 other"]


@pytest.mark.parametrize(
    ("counts", "classes"),
    [(range(1, 65), {"==1", "%16", "other"}), (range(2, 16), {"other"})],
)
def test_a_count_falls_into_exactly_the_classes_of_its_range(
    counts: range, classes: set[str]
) -> None:
    x = torch.zeros(1024)
    launches = {describe_launch(fixture_kernels.add_one, x, x, n, 1, BLOCK=64) for n in counts}

    assert {dict(zip("xyns", m.arguments, strict=True))["n"].specialisation for m in launches} == (
        classes
    )
    assert len(launches) == len(classes)


# Compiling


@pytest.mark.parametrize("target", [H100, B200, B300], ids=lambda target: target.name)
def test_a_variant_becomes_code_for_its_target(target: Target) -> None:
    made = compile_variant(fixture_kernels.matmul, MATMUL, target)

    assert same_architecture(cubin_architecture(made.cubin), target.arch)
    assert made.code.arch == target.arch
    assert made.code.function == "matmul"
    assert made.code.size_bytes == len(made.cubin)
    assert made.code.parameters == (
        ("a_ptr", "*bf16"),
        ("b_ptr", "*bf16"),
        ("c_ptr", "*bf16"),
        ("n", "i32"),
    )
    assert 49152 <= made.code.shared_bytes < 50000
    assert made.code.registers > 0
    assert made.code.spill_bytes == 0


class DriverOfOneGpu:
    """What Triton's own launch path asks before it compiles."""

    def get_current_target(self) -> Any:
        return triton.backends.compiler.GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


@pytest.mark.parametrize(
    ("kernel", "values", "constexprs"),
    [
        ("add_one", (torch.zeros(64), torch.zeros(64), 100, 1), {"BLOCK": 64}),
        ("add_one", (torch.zeros(64), torch.zeros(64)[1:], 1, 16), {"BLOCK": 64}),
        ("add_one", (torch.zeros(64), torch.zeros(64), 2**40, 17), {"BLOCK": 64}),
        ("optional_bias", (torch.zeros(64), None, torch.zeros(64), 0.5), {"BLOCK": 64}),
        ("optional_bias", (*[torch.zeros(64)] * 3, 0.5), {"BLOCK": 64, "DOUBLED": True}),
        ("typed_count", (torch.zeros(64), 1), {"BLOCK": 64}),
        ("typed_count", (torch.zeros(64), 16), {"BLOCK": 64}),
        ("unspecialised_count", (torch.zeros(64), 1), {"BLOCK": 64}),
    ],
)
def test_the_code_is_what_tritons_own_launch_would_compile(
    kernel: str,
    values: tuple[Any, ...],
    constexprs: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
    monkeypatch.setattr(triton.runtime.driver, "_active", DriverOfOneGpu())
    function = getattr(fixture_kernels, kernel)
    theirs = function.run(*values, grid=(1,), warmup=True, num_warps=4, num_stages=3, **constexprs)

    launch = describe_launch(function, *values, **constexprs)
    ours = compile_variant(function, Variant(launch, Configuration((), 4, 3)), H100)

    assert ours.cubin == theirs.asm["cubin"]
    parameters = re.search(r"\.entry \w+\((.*?)\)", theirs.asm["ptx"], re.DOTALL)
    assert parameters is not None
    # Triton appends the pointers to the global and the profile scratch.
    assert len(ours.code.parameters) + 2 == parameters[1].count(".param")


@pytest.mark.parametrize(
    ("variant", "complaint"),
    [
        (configured(add_one(stride="tensordesc<fp32[64]> ")), "tensor-descriptor arguments"),
        (configured(add_one(other="i32 %16")), "the kernel has no such parameter"),
        (configured(add_one(), BLOCKS=1), "the kernel has no such parameter"),
        (configured(add_one(BLOCK="i32 %16")), "both a constexpr and a runtime argument"),
        (configured(replace(add_one(), constexprs=())), "a parameter of the kernel is not given"),
        (configured(replace(add_one(), options=(("nmu_warps", 4),))), "no such compile option"),
        (configured(replace(add_one(), options=(("num_ctas", 2),))), "several blocks in a cluster"),
    ],
)
def test_what_cannot_be_launched_is_refused_when_it_is_compiled(
    variant: Variant, complaint: str
) -> None:
    with pytest.raises(BuildError, match=complaint):
        compile_variant(fixture_kernels.add_one, variant, H100)


def test_a_compile_error_says_what_the_compiler_says() -> None:
    launch = Launch("does_not_compile", (), (Argument("x_ptr", "*fp32", "aligned"),))
    with pytest.raises(BuildError, match="the block is too small"):
        compile_variant(fixture_kernels.does_not_compile, configured(launch, BLOCK=64), H100)


def test_a_failure_of_ptxas_carries_its_words_and_no_temporary_path(
    capfd: pytest.CaptureFixture[str],
) -> None:
    launch = Launch("fails_in_ptxas", (), (Argument("x_ptr", "*fp32", "aligned"),))
    with pytest.raises(BuildError, match="Not a name of any known instruction") as caught:
        compile_variant(fixture_kernels.fails_in_ptxas, configured(launch, BLOCK=128), H100)

    assert "/" not in caught.value.found.replace("`", "")
    assert capfd.readouterr().out == ""


def test_spills_are_counted() -> None:
    launch = Launch("hungry", (("BLOCK", 16384),), (Argument("x_ptr", "*fp32", "aligned"),))
    capped = compile_variant(
        fixture_kernels.hungry, Variant(launch, Configuration((), 4, 3, maxnreg=32)), H100
    )

    assert capped.code.registers == 32
    assert capped.code.spill_bytes > 1000


COMPILE_ONE = """
import sys
sys.path.insert(0, sys.argv[1])
if "--no-gpu-questions" in sys.argv:
    import torch
    def refuse(*_, **__):
        raise AssertionError("a device was asked for")
    for name in dir(torch.cuda):
        value = getattr(torch.cuda, name)
        if callable(value) and not isinstance(value, type) and not name.startswith("__"):
            setattr(torch.cuda, name, refuse)
import fixture_kernels
from test_triton_compat import B200, MATMUL
from ssd_aot.triton_compat import compile_variant
sys.stdout.buffer.write(compile_variant(fixture_kernels.matmul, MATMUL, B200).cubin)
"""


def compiled_elsewhere(cwd: Path, *arguments: str, **environment: str) -> bytes:
    """The cubin of `MATMUL` for the B200 from a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", COMPILE_ONE, str(TESTS), *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(TESTS.parent)} | environment,
        stdout=subprocess.PIPE,
        check=True,
    ).stdout


@pytest.mark.skipif(not layout_can_be_fixed(), reason="address randomisation cannot be turned off")
def test_the_same_variant_gives_the_same_bytes_anywhere_and_they_hold_no_path(
    tmp_path: Path,
) -> None:
    elsewhere = tmp_path / "a" / "deeper" / "folder"
    elsewhere.mkdir(parents=True)
    cubins = [
        compiled_elsewhere(tmp_path, PYTHONHASHSEED="1", TMPDIR=str(tmp_path)),
        compiled_elsewhere(elsewhere, PYTHONHASHSEED="2", TMPDIR=str(elsewhere)),
        *(compile_variant(fixture_kernels.matmul, MATMUL, B200).cubin for _ in range(6)),
    ]

    assert len(set(cubins)) == 1
    assert not re.search(rb"(/[\w.-]+){2,}", cubins[0])


def test_no_device_is_asked_for(tmp_path: Path) -> None:
    assert compiled_elsewhere(tmp_path, "--no-gpu-questions", CUDA_VISIBLE_DEVICES="")


@pytest.mark.parametrize("cache_dir", ["", "relative/cache"])
def test_the_users_triton_cache_is_neither_read_nor_written(tmp_path: Path, cache_dir: str) -> None:
    compiled_elsewhere(tmp_path, TRITON_CACHE_DIR=cache_dir, HOME=str(tmp_path), TRITON_HOME="")

    assert list(tmp_path.iterdir()) == []


def test_an_override_of_the_architecture_in_the_environment_does_not_enter(tmp_path: Path) -> None:
    cubin = compiled_elsewhere(tmp_path, TRITON_OVERRIDE_ARCH="sm80")

    assert same_architecture(cubin_architecture(cubin), "sm_100a")


# Kernels by reference


def test_a_kernel_is_found_by_its_reference() -> None:
    assert kernel_function("fixture_kernels:add_one") is fixture_kernels.add_one
    assert re.fullmatch("[0-9a-f]{64}", source_hash(fixture_kernels.add_one))


@pytest.mark.parametrize(
    "reference", ["fixture_kernels:absent", "no_such_module:f", "", "fixture_kernels:tl"]
)
def test_a_reference_to_no_kernel_is_an_error_that_repeats_it(reference: str) -> None:
    with pytest.raises(BuildError) as caught:
        kernel_function(reference)
    assert caught.value.where == reference


# The toolchain


def imitation(root: Path, version: str = "3.7.1", compiler: str = "passes") -> Path:
    """A tree with the parts of Triton that decide what a kernel becomes."""
    files = {
        "__init__.py": f"__version__ = '{version}'",
        "_utils.py": "",
        "knobs.py": "",
        "compiler/compiler.py": compiler,
        "backends/nvidia/compiler.py": "",
        "language/core.py": "",
        "runtime/jit.py": "",
        "_C/libtriton.so": "machine code",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_triton_counts_by_the_content_of_its_files_and_not_by_its_version(tmp_path: Path) -> None:
    released = triton_content(imitation(tmp_path / "a", "3.7.1"))
    rebuilt = triton_content(imitation(tmp_path / "b", "3.7.1+git0123abc"))
    older = triton_content(imitation(tmp_path / "c", "3.7.1", compiler="other passes"))

    assert released == rebuilt
    assert released != older


@pytest.mark.parametrize("lost", ["_C/libtriton.so", "knobs.py"])
def test_an_identity_that_cannot_be_read_is_fatal(tmp_path: Path, lost: str) -> None:
    root = imitation(tmp_path)
    (root / lost).unlink()

    with pytest.raises(HostError, match=re.escape(lost)):
        triton_content(root)


def test_a_folder_of_triton_that_cannot_be_listed_is_fatal(tmp_path: Path) -> None:
    root = imitation(tmp_path)
    (root / "language/core.py").unlink()
    (root / "language").rmdir()

    with pytest.raises(HostError, match="language"):
        triton_content(root)


KNOWN = Toolchain("3.7.1", "aa", "ptxas 12.8.93", "cpython-311", "linux-x86_64")


def test_two_version_strings_of_the_same_content_are_the_same_toolchain() -> None:
    assert same_toolchain(replace(KNOWN, triton_version="3.7.1+git0123abc"), KNOWN) == []


def test_each_difference_names_its_field_and_both_values() -> None:
    other = replace(KNOWN, triton_version="3.7.0", triton_content="bb")

    (difference,) = same_toolchain(other, KNOWN)

    assert difference.field == "triton_content"
    assert difference.found == "Triton 3.7.0, files bb"
    assert difference.wanted == "Triton 3.7.1, files aa"


def test_the_toolchain_here_is_told_with_the_variables_that_enter_and_without_their_paths(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = tmp_path / "libdevice.bc"
    library.write_bytes(b"")
    monkeypatch.setenv("TRITON_LIBDEVICE_PATH", str(library))
    monkeypatch.setenv("DISABLE_LLVM_OPT", "1")
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")

    here = toolchain()

    assert here.triton_version == triton.__version__
    assert re.fullmatch(r"ptxas [\d.]+, ptxas-blackwell [\d.]+", here.ptxas_version)
    assert [name for name, _ in here.environment] == ["DISABLE_LLVM_OPT", "TRITON_LIBDEVICE_PATH"]
    assert dict(here.environment)["TRITON_LIBDEVICE_PATH"].startswith("sha256:e3b0c442")


# ptxas


def ptxas_of_release(path: Path, release: str) -> str:
    path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.1'\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("target", "release", "wanted"),
    [(H100, "11.8", "12.0"), (B200, "12.6", "12.8"), (B300, "12.8", "12.9")],
    ids=lambda value: value.name if isinstance(value, Target) else value,
)
def test_a_ptxas_too_old_for_the_architecture_is_told_with_path_and_releases(
    target: Target, release: str, wanted: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tool = ptxas_of_release(tmp_path / "ptxas", release)
    monkeypatch.setenv("TRITON_PTXAS_PATH", tool)
    monkeypatch.setenv("TRITON_PTXAS_BLACKWELL_PATH", tool)

    with pytest.raises(HostError) as caught:
        check_ptxas(target)

    message = str(caught.value)
    assert caught.value.exit_code == 3
    assert all(part in message for part in (target.arch, tool, release, wanted, "unset TRITON_"))


@pytest.mark.parametrize("target", [H100, B200, B300], ids=lambda target: target.name)
def test_the_ptxas_that_comes_with_triton_knows_the_targets(target: Target) -> None:
    check_ptxas(target)
