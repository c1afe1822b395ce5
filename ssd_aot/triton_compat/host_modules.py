"""The C extensions that Triton would build at its first launch, built while the image is.

In all releases `cuda_utils`, from a file of Triton's own; in 3.6 also a launcher for each
signature, from a text that Triton generates.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import triton
from triton.backends.nvidia import driver as cuda_driver
from triton.runtime import build

from ssd_aot.errors import BuildError, HostError

EXTENSION_SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))
_WITHOUT_PATHS = ("-s", "-Wl,--build-id=none")
"""Symbols name the source with its temporary folder, and the build's id is a hash over them."""
_EXECUTABLE_FORMATS = ("ELF", "")
"""The last part of Triton's name for a platform, which it learns from the program `file`: empty
where that is not installed (`platform_key`: 3.6.0 to 3.9.0)."""


@dataclass(frozen=True)
class HostSource:
    """The C text of an extension module and the name that Triton gives it."""

    name: str
    text: str
    keyed_by_source: bool

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def keys(self) -> tuple[str, ...]:
        """Triton's keys for it where the source alone decides them (3.6.0 and 3.7.1)."""
        if not self.keyed_by_source:
            return ()
        bits = platform.architecture()[0]
        platforms = (
            ",".join((platform.machine(), platform.system(), bits, form))
            for form in _EXECUTABLE_FORMATS
        )
        return tuple(hashlib.sha256((self.text + name).encode()).hexdigest() for name in platforms)


def driver_source() -> HostSource:
    """The module through which Triton talks to the CUDA driver: `cuda_utils`, of `driver.c`."""
    text = (Path(cuda_driver.__file__).parent / "driver.c").read_text()
    # By `compile_module_from_src` (3.6.0, 3.7.1), whose key is of the text and the platform; by
    # `compile_module_from_file` (3.8.0, 3.9.0), whose key also holds the host's folders.
    keyed = hasattr(cuda_driver, "compile_module_from_src")
    return HostSource("cuda_utils", text, keyed_by_source=keyed)


def launcher_source(source: Any, metadata: Any) -> HostSource | None:
    """The module that launches a compiled kernel, None where Triton needs none of its own.

    `source` and `metadata` are those of a `CompiledKernel`.
    """
    # `CudaLauncher.__init__` generates, builds and loads it (3.6.0); 3.7.1 to 3.9.0 launch all
    # kernels by a function of `cuda_utils`.
    if not triton.__version__.startswith("3.6."):
        return None
    found: list[HostSource] = []

    def keep(src: str, name: str, **_: Any) -> Any:
        found.append(HostSource(name, src, keyed_by_source=True))
        return SimpleNamespace(launch=None)

    compile_, dirs = cuda_driver.compile_module_from_src, cuda_driver.library_dirs
    cuda_driver.compile_module_from_src, cuda_driver.library_dirs = keep, list
    try:
        cuda_driver.CudaLauncher(source, metadata)
    finally:
        cuda_driver.compile_module_from_src, cuda_driver.library_dirs = compile_, dirs
    return found[0]


def build_host_module(source: HostSource) -> bytes:
    """The shared object, by Triton's own command. Raises HostError without a C compiler, BuildError
    when it fails."""
    try:
        with (
            tempfile.TemporaryDirectory(prefix="ssd-aot-") as scratch,
            _driver_library(source.text) as libraries,
        ):
            path = Path(scratch) / f"{source.name}.c"
            path.write_text(source.text)
            # (name, source, folder, library folders, include folders, libraries, flags):
            # 3.6.0 to 3.9.0.
            built = build._build(
                source.name, str(path), scratch, [libraries], cuda_driver.include_dirs,
                cuda_driver.libraries, [*_WITHOUT_PATHS, *_nameless(scratch)],
            )  # fmt: skip
            return Path(built).read_bytes()
    except subprocess.CalledProcessError as error:
        raise BuildError(
            "the C compiler failed on a module of Triton's",
            where=f"{source.name}.c",
            found=f"exit code {error.returncode} of {' '.join(map(str, error.cmd))}",
            wanted="a C compiler with Python's headers",
            mend="install python3-dev, and see the compiler's own message above",
        ) from error


def _nameless(scratch: str) -> Iterator[str]:
    """Flags by which assertions, of Python's headers too, name their file without its folder."""
    headers = {sysconfig.get_path("include"), sysconfig.get_path("platinclude")}
    for folder in (scratch, *cuda_driver.include_dirs, *sorted(headers)):
        yield f"-fmacro-prefix-map={folder}/="


@contextmanager
def _driver_library(text: str) -> Iterator[str]:
    """A folder with a library of the driver's name: linking asks for no more, and the real one is
    found at run time.

    It has what the text may call: linkers that are set up with `--as-needed`, as Debian's and
    Ubuntu's are, note no library that nothing is taken from.
    """
    with tempfile.TemporaryDirectory(prefix="ssd-aot-") as folder:
        name = "libcuda.so.1"
        called = sorted(set(re.findall(r"\bcu[A-Z]\w+", text)))
        subprocess.run(
            [_compiler(), "-shared", "-fPIC", "-x", "c", "-", f"-Wl,-soname,{name}", "-o", name],
            cwd=folder,
            input="".join(f"void {function}(void) {{}}\n" for function in called),
            text=True,
            check=True,
        )
        yield folder


def _compiler() -> str:
    """The C compiler that Triton takes (`_build`: 3.6.0 to 3.9.0)."""
    found = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if found is None:
        raise HostError(
            "engine kernels need host modules, which a C compiler builds",
            where="CC, gcc, clang",
            found="none of them",
            wanted="a C compiler where the image is built; the serving host needs none",
            mend="install gcc in the build stage, or set CC",
        )
    return found
