"""The host itself: cores, disk, a C compiler, the environment."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ssd_aot.doctor.diagnosis import Item, Purpose

ROOM_BYTES = 100_000_000
"""Free space below which a build is in danger: some forty times the code of the default spec."""

_WRITING: tuple[Purpose, ...] = ("build", "tune")
_PREFIXES = ("SSD_AOT_", "TRITON_")
_ALSO = ("CUDA_VISIBLE_DEVICES", "DISABLE_PTXAS_OPT", "LD_PRELOAD", "PTXAS_OPTIONS",
         "SOURCE_DATE_EPOCH")  # fmt: skip


def host_items(environment: Mapping[str, str], compiled_into: Mapping[str, str]) -> Iterator[Item]:
    """`compiled_into` are the variables that enter the identity of what is compiled here."""
    yield Item("ok", "cores", f"{len(os.sched_getaffinity(0))} may be used")
    yield _room("bundle folder", lambda: _nearest(Path("dist")), "--out")
    yield _room("temporary folder", lambda: Path(tempfile.gettempdir()), "TMPDIR")
    compiler = environment.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), "")
    if compiler and shutil.which(compiler):
        yield Item("ok", "C compiler", str(shutil.which(compiler)))
    else:
        yield Item("note", "C compiler", "none; only an engine's kernels without their host "
                   "modules in the bundle need one", compiler)  # fmt: skip
    yield from _environment(environment, compiled_into)


def _nearest(place: Path) -> Path:
    """The place, or the nearest folder above it that is there."""
    absolute = place.absolute()
    return next((p for p in (absolute, *absolute.parents) if p.exists()), Path("/"))


def _room(name: str, place_of: Callable[[], Path], option: str) -> Item:
    mend = f"choose another place with {option}"
    try:
        place = place_of()
        free = shutil.disk_usage(place).free
        writable = os.access(place, os.W_OK)
    except OSError as error:
        return Item("lacking", name, "cannot be used", str(error), "a folder to write to", mend,
                    _WRITING)  # fmt: skip
    if not writable:
        return Item("lacking", name, "cannot be written", str(place), "a folder to write to",
                    f"{mend}, or make it writable", _WRITING)  # fmt: skip
    if free < ROOM_BYTES:
        found, wanted = f"{free:,} bytes free in {place}", f"{ROOM_BYTES:,} bytes"
        return Item("lacking", name, "has little room", found, wanted, f"free space, or {mend}",
                    _WRITING)  # fmt: skip
    return Item("ok", name, f"{free / 1e9:.1f} GB free in {place}")


def _environment(
    environment: Mapping[str, str], compiled_into: Mapping[str, str]
) -> Iterator[Item]:
    names = sorted(
        name for name in environment
        if name.startswith(_PREFIXES) or name in _ALSO or name in compiled_into
    )  # fmt: skip
    for name in names:
        value = environment[name]
        if name == "TRITON_INTERPRET" and value not in ("", "0"):
            yield Item("lacking", name, "has kernels interpreted and not compiled", value,
                       "unset", f"unset {name}", ("build", "tune"))  # fmt: skip
        else:
            enters = ", which enters the identity of what is compiled" * (name in compiled_into)
            yield Item("note", name, f"is set to {value!r}{enters}")
