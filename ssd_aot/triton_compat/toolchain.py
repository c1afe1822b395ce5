"""The identity of what compiles: Triton's own files, the assemblers, the environment."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import triton
from triton import knobs
from triton._C.libtriton import get_cache_invalidating_env_vars
from triton.runtime import cache

from ssd_aot.bundle.manifest import Toolchain
from ssd_aot.errors import HostError
from ssd_aot.triton_compat.ptxas import ptxas_versions

# The parts of Triton that decide what a kernel becomes. `__init__.py` at the top is not among
# them: it carries the version string, and two builds of the same code may spell that differently.
_PARTS = ("_utils.py", "knobs.py", "backends", "compiler", "language", "runtime")
_SUFFIXES = (".py", ".bc")

# Read by Triton on the way to code but not reported by `get_cache_invalidating_env_vars`
# (read in 3.6.0, 3.7.1, 3.8.0, 3.9.0).
_ENVIRONMENT = (
    "DISABLE_PTXAS_OPT",
    "LLVM_EXTRACT_DI_LOCAL_VARIABLES",
    "PTXAS_OPTIONS",
    "TRITON_F32_DEFAULT",
    "TRITON_FORCE_DISABLE_FP_FUSION",
    "TRITON_LIBDEVICE_PATH",
    "TRITON_MOCK_PTX_VERSION",
)
# Set by the compilation of builtin kernels itself, whatever the user has.
_OWN = ("TRITON_DISABLE_LINE_INFO",)


@dataclass(frozen=True)
class Difference:
    """A field in which two toolchains differ."""

    field: str
    found: str
    wanted: str


def toolchain(*, of_engine: bool = False) -> Toolchain:
    """What compiles in this process, with `of_engine` what its engine's launches compile with.

    Raises HostError when any part cannot be read: a made-up identity would let code from one
    compiler pass for another's.
    """
    return Toolchain(
        triton_version=str(triton.__version__),
        triton_content=triton_content(Path(triton.__file__).parent),
        ptxas_version=ptxas_versions(),
        python_abi=_python_abi(),
        platform=sysconfig.get_platform(),
        environment=_environment(of_engine),
    )


def take_version(version: str) -> None:
    """Let Triton's keys be those of a build of the same files that calls itself `version`: they
    hold its version string beside the content (`triton_key`: 3.6.0 to 3.9.0)."""
    if cache.__version__ != version:
        cache.__version__ = version
        cache.triton_key.cache_clear()


def _python_abi() -> str:
    found = sysconfig.get_config_var("SOABI")
    if not found:
        raise HostError(
            "the identity of this Python cannot be read, and nothing is compiled without it",
            where="sysconfig: SOABI",
            found="nothing",
            wanted="a name such as cpython-312-x86_64-linux-gnu",
            mend="use a CPython that was installed with its sysconfig data",
        )
    return str(found)


@lru_cache(maxsize=8)
def triton_content(root: Path) -> str:
    """sha256 over the files of the Triton package in `root` that decide what a kernel becomes.

    Paths enter relative to `root`. The shared library alone is some 460 MB, and hashing it takes
    0.26 s where it is in the page cache, so it is hashed whole rather than trusted by its size.
    """
    total = hashlib.sha256()
    try:
        for path in _content_files(root):
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            total.update(f"{path.relative_to(root).as_posix()} {digest}\n".encode())
    except OSError as error:
        raise HostError(
            "the identity of Triton cannot be read, and nothing is compiled without it",
            where=str(error.filename or root),
            found=error.strerror or str(error),
            mend="make Triton's files readable or install the triton wheel anew",
        ) from error
    return total.hexdigest()


def _content_files(root: Path) -> list[Path]:
    found = [root / part for part in _PARTS if part.endswith(".py")]
    for part in _PARTS:
        # os.walk tells of a folder that it cannot list; Path.rglob passes over it in silence.
        for folder, _, names in os.walk(root / part, onerror=_raise):
            found += [Path(folder, name) for name in names if name.endswith(_SUFFIXES)]
    libraries = [path for path in (root / "_C").glob("libtriton.*") if path.is_file()]
    if not libraries:
        raise FileNotFoundError(2, "no such file", str(root / "_C" / "libtriton.so"))
    return sorted([*found, *libraries])


def _raise(error: OSError) -> None:
    if not isinstance(error, NotADirectoryError):
        raise error


def _environment(of_engine: bool) -> tuple[tuple[str, str], ...]:
    values = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    # `{name: value}` of those that are set (3.6.0, 3.7.1, 3.8.0, 3.9.0).
    values.update(get_cache_invalidating_env_vars())
    if of_engine:
        # `JITFunction.run` makes them options of every launch (3.6.0, 3.7.1, 3.8.0, 3.9.0).
        if knobs.runtime.debug:
            values["TRITON_DEBUG"] = "true"
        if knobs.compilation.instrumentation_mode:
            values["TRITON_INSTRUMENTATION_MODE"] = knobs.compilation.instrumentation_mode
    else:
        values = {name: value for name, value in values.items() if name not in _OWN}
    return tuple((name, _without_paths(name, value)) for name, value in sorted(values.items()))


def _without_paths(name: str, value: str) -> str:
    """A file counts by its content, so that the same toolchain elsewhere is the same toolchain."""
    if not value.startswith("/"):
        return value
    try:
        return f"sha256:{hashlib.sha256(Path(value).read_bytes()).hexdigest()}"
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return "a path"  # No file, so none of whose content anything could be made.
    except OSError as error:
        raise HostError(
            "a file that decides what is compiled cannot be read",
            where=f"{name}={value}",
            found=error.strerror or str(error),
            mend="make it readable, or unset the variable",
        ) from error


def same_toolchain(found: Toolchain, wanted: Toolchain) -> list[Difference]:
    """The fields in which two toolchains differ; none means that they make the same code.

    Triton counts by the content of its files: its version string is for people. What entails
    others comes first: Triton for another platform has other files.
    """
    pairs = (
        ("platform", found.platform, wanted.platform),
        ("python_abi", found.python_abi, wanted.python_abi),
        ("triton_content", found.triton_content, wanted.triton_content),
        ("ptxas_version", found.ptxas_version, wanted.ptxas_version),
        (
            "environment",
            _variables(found.environment, wanted.environment),
            _variables(wanted.environment, found.environment),
        ),
    )
    versions = {found.triton_content: found, wanted.triton_content: wanted}

    def spelled(value: str) -> str:
        one = versions.get(value)
        return f"Triton {one.triton_version}, files {value}" if one else value

    return [
        Difference(field, spelled(here), spelled(there))
        for field, here, there in pairs
        if here != there
    ]


def _variables(these: tuple[tuple[str, str], ...], others: tuple[tuple[str, str], ...]) -> str:
    """The variables whose values differ, as one side has them."""
    mine, theirs = dict(these), dict(others)
    differ = sorted(n for n in mine.keys() | theirs.keys() if mine.get(n) != theirs.get(n))
    return ", ".join(f"{name}={mine[name]}" if name in mine else f"{name} unset" for name in differ)
