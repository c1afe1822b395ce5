"""The manifest: what a bundle holds, as frozen dataclasses with one canonical JSON form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ssd_aot.launches import Configuration, Launch

FORMAT = 1
"""Raised when an older reader could not read a newer manifest rightly."""


@dataclass(frozen=True)
class CodeObject:
    """A compiled kernel and what its launch needs beside its arguments.

    `parameters` are the runtime arguments in launch order as (name, type); the launcher adds the
    global- and profile-scratch pointers that Triton appends.
    """

    sha256: str
    size_bytes: int
    function: str
    arch: str
    num_warps: int
    num_ctas: int
    shared_bytes: int
    registers: int
    spill_bytes: int
    global_scratch_bytes: int
    profile_scratch_bytes: int
    launch_pdl: bool
    launch_cooperative: bool
    parameters: tuple[tuple[str, str], ...]

    @property
    def path(self) -> str:
        return f"objects/{self.sha256}.cubin"


@dataclass(frozen=True)
class Tuning:
    """How the configuration was chosen: `default`, `borrowed from NAME`, `pinned`, or `measured`.

    `checked` says whether its results passed the reference on such a GPU. `median_us` and
    `default_us` are the device times measured for the winner and for the default, or None.
    """

    status: str
    checked: bool = False
    median_us: float | None = None
    default_us: float | None = None


@dataclass(frozen=True)
class VariantEntry:
    """One variant for one target, with the ids of the signatures that need it."""

    target: str
    launch: Launch
    configuration: Configuration
    object: CodeObject
    tuning: Tuning
    signatures: tuple[str, ...]


@dataclass(frozen=True)
class Toolchain:
    """What compiled the bundle. `triton_content` is a hash over Triton's own files, so that two
    wheels with the same content are equal whatever version string they carry."""

    triton_version: str
    triton_content: str
    ptxas_version: str
    python_abi: str
    platform: str
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class TargetEntry:
    """A GPU the bundle serves, as the build knew it."""

    name: str
    arch: str
    capability: tuple[int, int]
    shared_bytes_optin: int
    multiprocessors: int


@dataclass(frozen=True)
class Source:
    """Where launch code and kernels come from; `kernels` maps each kernel to its source's sha256."""

    name: str
    version: str
    kernels: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Manifest:
    """All of a bundle but the code itself.

    `spec` is the normalised spec as plain JSON values; `signatures` are the expanded signatures in
    their JSON form, keyed by id; `launch_abi` is the hash that the builtin launcher compares;
    `missing` names the launches that a `--keep-going` build could not make (empty: complete);
    `files` maps every other file of the bundle to (sha256, size in bytes).
    """

    spec: dict[str, Any]
    spec_digest: str
    signatures: tuple[tuple[str, dict[str, Any]], ...]
    source: Source
    launch_abi: str
    toolchain: Toolchain
    targets: tuple[TargetEntry, ...]
    variants: tuple[VariantEntry, ...]
    missing: tuple[str, ...]
    files: tuple[tuple[str, str, int], ...]

    @property
    def complete(self) -> bool:
        return not self.missing
