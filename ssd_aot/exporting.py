"""A plain Triton cache folder out of a bundle, for images that carry no ssd_aot.

The folder is as Triton writes it (3.6.0 to 3.9.0): a folder a key, its name the key in base 32,
and in it a group file with the absolute paths of its members. So it serves at one place alone.
"""

from __future__ import annotations

import json
from base64 import b32encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ssd_aot.bundle.store import Bundle
from ssd_aot.bundle.triton_files import HostModule, TritonFiles
from ssd_aot.bundle.writer import place_folder
from ssd_aot.errors import BundleError, UsageError
from ssd_aot.runtime.accepting import refuse_changed


@dataclass(frozen=True)
class Exported:
    """What was written: `left_out` names the host modules for which Triton's key is only known on
    the host that serves."""

    folder: Path
    serves_at: PurePosixPath
    kernels: int
    tunings: int
    host_modules: int
    left_out: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "serves_at": str(self.serves_at),
            "kernels": self.kernels,
            "tunings": self.tunings,
            "host_modules": self.host_modules,
            "left_out": list(self.left_out),
        }

    def __str__(self) -> str:
        return (
            f"{self.folder}: {self.kernels} kernels, {self.tunings} tuning results and "
            f"{self.host_modules} host modules, for TRITON_CACHE_DIR={self.serves_at}"
        )


def export_triton_cache(bundle: Bundle, out: Path, serves_at: PurePosixPath) -> Exported:
    """Write the cache to the folder `out`, which must not exist or be empty, for the absolute path
    `serves_at` in the image.

    Raises UsageError for a bundle of builtin kernels, for which Triton has no place, and for a
    relative path; BundleError for a bundle that was changed.
    """
    files = bundle.manifest.triton
    if files is None:
        raise UsageError(
            "builtin kernels are launched without Triton and have no place in its cache",
            where=str(bundle.path),
            found=f"source {bundle.manifest.source.name}",
            wanted="a bundle of an engine's kernels",
            mend="build one with --source vllm or another engine",
        )
    if not serves_at.is_absolute():
        raise UsageError("Triton's group files hold absolute paths", where="--at",
                         found=str(serves_at), wanted="the folder's absolute path in the image",
                         mend="write it from / on")  # fmt: skip
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError("the output exists, and is not replaced", where=str(out),
                         found="a file or a folder that is not empty",
                         wanted="an empty folder, or nothing",
                         mend="give another folder, or move it away")  # fmt: skip
    refuse_changed(bundle)
    modules = [(key, module) for module in files.host_modules for key in module.keys]
    suffix = _extension_suffix(bundle)
    contents = dict(_contents(bundle, files, serves_at, modules, suffix))
    place_folder(out, contents)
    return Exported(
        out,
        serves_at,
        len(files.kernels),
        len(files.tunings),
        len({module.name + module.source_sha256 for _, module in modules}),
        tuple(sorted({module.name for module in files.host_modules if not module.keys})),
    )


def _contents(
    bundle: Bundle,
    files: TritonFiles,
    serves_at: PurePosixPath,
    modules: list[tuple[str, HostModule]],
    suffix: str,
) -> Iterator[tuple[str, bytes]]:
    for kernel in files.kernels:
        folder = folder_name(kernel.key)
        group = {}
        for name, path in kernel.files().items():
            yield f"{folder}/{name}", (bundle.path / path).read_bytes()
            group[name] = str(serves_at / folder / name)
        text = json.dumps({"child_paths": group}, sort_keys=True)
        yield f"{folder}/__grp__{kernel.name}.json", text.encode()
    for tuning in files.tunings:
        yield f"{folder_name(tuning.key)}/{tuning.name}", (bundle.path / tuning.path).read_bytes()
    for key, module in modules:
        yield f"{folder_name(key)}/{module.name}{suffix}", (bundle.path / module.path).read_bytes()


def folder_name(key: str) -> str:
    """Triton's name for the folder of a key (sha256)."""
    return b32encode(bytes.fromhex(key)).decode().rstrip("=")


def _extension_suffix(bundle: Bundle) -> str:
    """Python's suffix of extension modules, of the host that the bundle was built on."""
    abi = bundle.manifest.toolchain.python_abi
    if not abi:
        raise BundleError("the bundle does not say for which Python it was built",
                          where="toolchain.python_abi", found="nothing",
                          wanted="a SOABI such as cpython-312-x86_64-linux-gnu")  # fmt: skip
    return f".{abi}.so"
