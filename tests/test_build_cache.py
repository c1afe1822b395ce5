"""The partial store: whole entries or none, held by one build."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from ssd_aot.bundle.manifest import CodeObject, Toolchain
from ssd_aot.compilation.build_cache import BuildCache, entry_key
from ssd_aot.errors import BuildError, HostError
from ssd_aot.launches import Argument, Configuration, Launch, Variant
from ssd_aot.targets import Target
from ssd_aot.triton_compat import CompiledObject

KEY = "5e" * 32


def an_object(cubin: bytes = b"\x7fELF code\n" * 500) -> CompiledObject:
    code = CodeObject(
        sha256=hashlib.sha256(cubin).hexdigest(),
        size_bytes=len(cubin),
        function="scan",
        arch="sm_90a",
        num_warps=4,
        num_ctas=1,
        shared_bytes=1024,
        registers=64,
        spill_bytes=0,
        global_scratch_bytes=0,
        profile_scratch_bytes=0,
        launch_pdl=False,
        launch_cooperative=False,
        parameters=(("x_ptr", "*bf16"), ("n", "i32")),
    )
    return CompiledObject(cubin, code)


def entry(out: Path) -> Path:
    (found,) = (out.with_name(out.name + ".partial") / "entries").iterdir()
    return found


@contextmanager
def file_size_limit(size_bytes: int) -> Iterator[None]:
    """Writes beyond it fail, as on a full disk or over a quota."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_an_entry_outlives_the_build_that_made_it(tmp_path: Path) -> None:
    with BuildCache.beside(tmp_path / "b200") as cache:
        assert cache.get(KEY) is None
        cache.put(KEY, an_object())

    with BuildCache.beside(tmp_path / "b200") as cache:
        assert cache.get(KEY) == an_object()
    assert (tmp_path / "b200.partial").is_dir()


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "garbled"])
def test_an_entry_that_is_not_whole_is_none_and_goes(tmp_path: Path, damage: str) -> None:
    with BuildCache.beside(tmp_path / "b200") as cache:
        cache.put(KEY, an_object())
        path = entry(tmp_path / "b200")
        content = path.read_bytes()
        flipped = content[:-1] + bytes([content[-1] ^ 1])
        damaged = {"cut": content[:-100], "flipped": flipped, "empty": b"", "garbled": b"\0" * 99}
        path.write_bytes(damaged[damage])

        assert cache.get(KEY) is None
        assert not path.exists()


def test_an_entry_of_another_form_is_none(tmp_path: Path) -> None:
    with BuildCache.beside(tmp_path / "b200") as cache:
        cache.put(KEY, an_object())
        body = b'{"sha256":"00"}\n' + b"code"
        entry(tmp_path / "b200").write_bytes(
            hashlib.sha256(body).hexdigest().encode() + b"\n" + body
        )

        assert cache.get(KEY) is None


def test_what_other_processes_left_lying_about_does_no_harm(tmp_path: Path) -> None:
    partial = tmp_path / "b200.partial"
    (partial / "scratch" / "tmp.pid_17_x").mkdir(parents=True)
    (partial / "scratch" / f"{KEY}.half").write_bytes(b"half")
    (partial / "lock").touch()
    (partial / "holder").write_text("17\n")
    (partial / "entries").mkdir()
    (partial / "entries" / "stranger.lock").touch()

    with BuildCache.beside(tmp_path / "b200") as cache:
        cache.put(KEY, an_object())
        assert cache.get(KEY) == an_object()
        assert list(cache.scratch.iterdir()) == []
    assert not (partial / "scratch").exists()


def test_a_second_build_is_told_who_holds_the_folder(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from ssd_aot.compilation.build_cache import BuildCache\n"
        "with BuildCache.beside(pathlib.Path(sys.argv[1])):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "b200")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)},
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        holder.stdout.readline()
        with pytest.raises(BuildError) as caught, BuildCache.beside(tmp_path / "b200"):
            pass
        holder.stdin.close()

    assert f"held by process {holder.pid}" in str(caught.value)
    assert str(tmp_path / "b200.partial") in str(caught.value)


def test_without_room_there_is_no_half_entry_and_the_error_tells_place_and_bytes(
    tmp_path: Path,
) -> None:
    with BuildCache.beside(tmp_path / "b200") as cache:
        with file_size_limit(1000), pytest.raises(HostError) as caught:
            cache.put(KEY, an_object())
        assert caught.value.exit_code == 3
        assert caught.value.where == str(tmp_path / "b200.partial" / "entries")
        assert caught.value.wanted.startswith(str(len(an_object().cubin))[0])
        assert cache.get(KEY) is None
        assert list(cache.scratch.iterdir()) == []

        cache.put(KEY, an_object())
        assert cache.get(KEY) == an_object()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_and_a_quota_are_the_same_to_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    with BuildCache.beside(tmp_path / "b200") as cache:
        monkeypatch.setattr(Path, "write_bytes", refuse)
        with pytest.raises(HostError, match="no room left"):
            cache.put(KEY, an_object())


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HostError, match="cannot write"), BuildCache(tmp_path / "file" / "x"):
        pass


VARIANT = Variant(
    Launch("scan", (("CHUNK", 128),), (Argument("x_ptr", "*bf16", "aligned"),)),
    Configuration((("BLOCK", 64),), 4, 2),
)
H100 = Target("h100", "sm_90a", (9, 0), 232448, 132)
COMPILER = Toolchain("3.7.1", "aa", "ptxas 12.8.93", "cpython-311", "linux-x86_64")


@pytest.mark.parametrize(
    ("variant", "target", "kernel", "compiler", "same"),
    [
        (VARIANT, replace(H100, name="h200"), "k", COMPILER, True),
        (VARIANT, H100, "k", replace(COMPILER, triton_version="3.7.1+git1"), True),
        (VARIANT, H100, "k", replace(COMPILER, triton_content="bb"), False),
        (VARIANT, H100, "k", replace(COMPILER, environment=(("PTXAS_OPTIONS", "-O1"),)), False),
        (VARIANT, H100, "changed", COMPILER, False),
        (VARIANT, replace(H100, arch="sm_100a"), "k", COMPILER, False),
        (replace(VARIANT, configuration=Configuration((), 4, 2)), H100, "k", COMPILER, False),
    ],
)
def test_the_key_covers_what_decides_a_compilation_and_nothing_else(
    variant: Variant, target: Target, kernel: str, compiler: Toolchain, same: bool
) -> None:
    first = entry_key(VARIANT, H100, "k", COMPILER)

    assert (entry_key(variant, target, kernel, compiler) == first) is same
