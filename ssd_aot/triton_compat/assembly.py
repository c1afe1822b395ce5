"""Running ptxas so that the same PTX gives the same bytes.

ptxas 12.8 to 13.4 lets the addresses of its own heap decide between registers that serve equally
well: for kernels with tensor-core instructions of sm_100, the same command gave two cubins in about
equal numbers, and so did other lengths of the file names in it. With the address layout fixed and
the same words in the command, the bytes were the same from every folder and in every environment.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from triton.backends.nvidia import compiler as cuda_backend

_ADDR_NO_RANDOMIZE = 0x0040000  # <linux/personality.h>
_QUERY = 0xFFFFFFFF
_LINE_FLAGS = ("-lineinfo", "-suppress-debug-info")
_libc = ctypes.CDLL(None, use_errno=True)


def layout_can_be_fixed() -> bool:
    """Whether this host lets a program run without address randomisation.

    The default seccomp profile of container engines forbids it; then code for sm_100 and later may
    differ between builds in the choice of registers, and in nothing else.
    """
    with _fixed_layout() as fixed:
        return fixed


@contextmanager
def _fixed_layout() -> Iterator[bool]:
    """What this thread starts meanwhile gets its memory at the same addresses each time."""
    before = _libc.personality(_QUERY)
    fixed = before != -1 and _libc.personality(before | _ADDR_NO_RANDOMIZE) != -1
    try:
        yield fixed
    finally:
        if fixed:
            _libc.personality(before)


def without_lines(ptx: str) -> str:
    """PTX without its line and debug directives: files, lines, and sections of debug data."""
    kept = []
    inside = False
    for line in ptx.splitlines():
        words = line.split()
        first = words[0] if words else ""
        if first == ".section" and len(words) > 1 and words[1].startswith(".debug"):
            inside = "}" not in words
        elif inside:
            inside = first != "}"
        elif first not in (".file", ".loc"):
            # `.target sm_90a, debug` asks for the tables themselves.
            kept.append(line.replace(", debug", "") if first == ".target" else line)
    return "\n".join(kept) + "\n"


class Assembler:
    """Stands in for the module `subprocess` in Triton's CUDA backend, and runs its ptxas command
    in `folder` under names that never change. `log` is what `ptxas -v` told."""

    CalledProcessError = subprocess.CalledProcessError
    check_output = staticmethod(subprocess.check_output)

    def __init__(self, folder: Path, drop_lines: bool) -> None:
        self.log = ""
        self._folder = folder
        self._drop_lines = drop_lines

    def run(self, command: list[str], *, stderr: TextIO, **_: Any) -> None:
        # [ptxas, *flags, source, "-o", output], and a file, read by name on failure
        # (`CUDABackend.make_cubin`: 3.6.0, 3.7.1, 3.8.0, 3.9.0).
        program, *flags, source, _dash_o, output = command
        if self._drop_lines:
            text = Path(source).read_text()
            (self._folder / "kernel.ptx").write_text(without_lines(text))
            flags = [flag for flag in flags if flag not in _LINE_FLAGS]
        else:
            shutil.copyfile(source, self._folder / "kernel.ptx")
        with _fixed_layout():
            ended = subprocess.run(
                ["ptxas", *flags, "kernel.ptx", "-o", "kernel.cubin"],
                executable=program,
                cwd=self._folder,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        self.log = ended.stderr
        Path(stderr.name).write_text(ended.stderr)
        ended.check_returncode()
        (self._folder / "kernel.cubin").replace(output)


@contextmanager
def assembling(folder: Path, *, drop_lines: bool = False) -> Iterator[Assembler]:
    """Triton assembles by an `Assembler` until the end of the block, with `drop_lines` without
    the tables that lead from code to source files."""
    assembler = Assembler(folder, drop_lines)
    before = cuda_backend.subprocess
    cuda_backend.subprocess = assembler
    try:
        yield assembler
    finally:
        cuda_backend.subprocess = before
