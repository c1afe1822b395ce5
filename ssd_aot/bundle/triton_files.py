"""What a bundle of an engine's kernels holds for Triton's own cache, by Triton's own keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from ssd_aot.bundle.json_readers import Reader, count, each, record, sha256, text


def stored_path(sha256: str, suffix: str) -> str:
    """Where a bundle keeps a file with that content; Triton tells files apart by their suffix."""
    return f"objects/{sha256}{suffix}"


@dataclass(frozen=True, order=True)
class CachedKernel:
    """A compiled kernel: Triton asks under `key` (sha256) for `name`.json and `name`.cubin.

    `variant` is the identity of the variant whose code this is, on `target`; `launch_key` is the
    key under which a process keeps the kernel once it has it.
    """

    key: str
    name: str
    launch_key: str
    target: str
    variant: str
    cubin_sha256: str
    metadata_sha256: str
    metadata_bytes: int

    def files(self) -> dict[str, str]:
        """The entry's group: file name in the cache → path in the bundle."""
        return {
            f"{self.name}.json": stored_path(self.metadata_sha256, ".json"),
            f"{self.name}.cubin": stored_path(self.cubin_sha256, ".cubin"),
        }


@dataclass(frozen=True, order=True)
class CachedTuning:
    """A tuning result, for which Triton asks under `key` (sha256) as `name`."""

    key: str
    name: str
    target: str
    kernel: str
    sha256: str
    size_bytes: int

    @property
    def path(self) -> str:
        return stored_path(self.sha256, ".json")


@dataclass(frozen=True, order=True)
class HostModule:
    """A C extension that Triton would build at its first use, as `name` with Python's suffix.

    Triton's key for it depends on the host, so it is found by name, source and platform; `keys`
    are those that Triton forms of the source alone (one a spelling of the platform), where it
    does: then they tell modules of one name apart.
    """

    name: str
    source_sha256: str
    keys: tuple[str, ...]
    sha256: str
    size_bytes: int

    @property
    def path(self) -> str:
        return stored_path(self.sha256, ".so")


@dataclass(frozen=True)
class TritonFiles:
    """All of it."""

    kernels: tuple[CachedKernel, ...]
    tunings: tuple[CachedTuning, ...]
    host_modules: tuple[HostModule, ...]

    def files(self) -> Iterator[tuple[str, str, int | None]]:
        """(path, sha256, size in bytes where it is known here) of each file that is named."""
        for kernel in self.kernels:
            yield stored_path(kernel.cubin_sha256, ".cubin"), kernel.cubin_sha256, None
            path = stored_path(kernel.metadata_sha256, ".json")
            yield path, kernel.metadata_sha256, kernel.metadata_bytes
        for tuning in self.tunings:
            yield tuning.path, tuning.sha256, tuning.size_bytes
        for module in self.host_modules:
            yield module.path, module.sha256, module.size_bytes

    def to_json(self) -> dict[str, Any]:
        return {
            field.name: [
                {name: list(value) if isinstance(value, tuple) else value
                 for name, value in vars(entry).items()}
                for entry in sorted(getattr(self, field.name))
            ]
            for field in fields(self)
        }  # fmt: skip


read_triton_files: Reader[TritonFiles] = record(
    TritonFiles,
    kernels=each(
        record(
            CachedKernel,
            key=sha256,
            name=text,
            launch_key=text,
            target=text,
            variant=sha256,
            cubin_sha256=sha256,
            metadata_sha256=sha256,
            metadata_bytes=count,
        )
    ),
    tunings=each(
        record(
            CachedTuning,
            key=sha256,
            name=text,
            target=text,
            kernel=text,
            sha256=sha256,
            size_bytes=count,
        )
    ),
    host_modules=each(
        record(
            HostModule,
            name=text,
            source_sha256=sha256,
            keys=each(sha256),
            sha256=sha256,
            size_bytes=count,
        )
    ),
)
