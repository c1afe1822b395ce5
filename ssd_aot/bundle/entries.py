"""The entries of a manifest: frozen dataclasses that know nothing of its JSON form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ssd_aot.bundle.needs import Needs
from ssd_aot.bundle.triton_files import TritonFiles
from ssd_aot.launches import Configuration, Launch, Variant
from ssd_aot.targets import Target

FORMAT = 1
"""Raised when an older reader could not read a newer manifest rightly."""


def object_path(sha256: str) -> str:
    """Where a bundle keeps the code object with that content."""
    return f"objects/{sha256}.cubin"


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
        return object_path(self.sha256)


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

    @property
    def variant(self) -> Variant:
        return Variant(self.launch, self.configuration)

    @property
    def name(self) -> str:
        """Short and unique within a bundle, for messages."""
        return f"{self.launch.kernel} for {self.target} [{self.variant.identity[:12]}]"


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
    """A GPU the bundle serves, as the build knew it. `walk_programs` and `walk_tokens` are its
    `layouts.FormRule`: which form of the scan runs, and so which launches are there."""

    name: str
    arch: str
    capability: tuple[int, int]
    shared_bytes_optin: int
    multiprocessors: int
    walk_programs: int
    walk_tokens: int

    @property
    def compute_capability(self) -> int:
        """As `Target.compute_capability`."""
        major, minor = self.capability
        return major * 10 + minor

    @classmethod
    def of(cls, target: Target, walk_programs: int = 0, walk_tokens: int = 0) -> TargetEntry:
        """A target with its rule of forms, which is for builtin kernels: an engine's have none."""
        return cls(
            name=target.name,
            arch=target.arch,
            capability=target.capability,
            shared_bytes_optin=target.shared_bytes_optin,
            multiprocessors=target.multiprocessors,
            walk_programs=walk_programs,
            walk_tokens=walk_tokens,
        )


@dataclass(frozen=True)
class Source:
    """Where launch code and kernels come from; `kernels` pairs each kernel with the sha256 of its
    source."""

    name: str
    version: str
    kernels: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class KernelText:
    """A kernel's own source: the sha256 of its text and the line it begins on. Its hash in `Source`
    is Triton's, over both and over all that it calls; these tell which of them differs."""

    sha256: str
    line: int


@dataclass(frozen=True)
class ManifestParts:
    """All of a bundle but the code itself: what `Manifest` writes and reads as one text.

    `spec` is the normalised spec as plain JSON values; `signatures` are the expanded signatures in
    their JSON form, keyed by id; `launch_abi` is the hash that the builtin launcher compares;
    `missing` names the launches that a `--keep-going` build could not make (empty: complete);
    `files` lists every other file of the bundle as (path, sha256, size in bytes), but for the
    manifest's own checksum. `triton` is what a bundle of an engine's kernels holds for Triton's own
    cache, None for builtin ones; `texts` are the sources of its kernels. `needs` counts what the
    build planned, None in bundles of releases that did not count.
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
    triton: TritonFiles | None = None
    needs: Needs | None = None
    texts: tuple[tuple[str, KernelText], ...] = ()

    @property
    def complete(self) -> bool:
        return not self.missing
