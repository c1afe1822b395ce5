"""Every candidate's code for one GPU in one file: compiled anywhere, measured where the GPU is.

`candidates.zip` holds `index.json` (launches, signatures, configurations, facts of the code, what
compiled it and from which sources) and the cubins by their sha256. Reading it needs no Triton, so
the GPU's host may have another one or none.
"""

from __future__ import annotations

import hashlib
import os
import uuid
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ssd_aot.bundle.json_readers import parse_json
from ssd_aot.bundle.manifest import CodeObject, Toolchain, object_path
from ssd_aot.errors import BundleError, MismatchError
from ssd_aot.launches import Configuration, Launch, canonical_json
from ssd_aot.operation import launch_abi
from ssd_aot.plan import PlannedLaunch
from ssd_aot.signatures import Signature
from ssd_aot.targets import Target, target
from ssd_aot.writing import write_error

FORMAT = 1
FILE = "candidates.zip"
_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time a zip entry can have: the same candidates make the same file."""


@dataclass(frozen=True)
class CompiledCandidate:
    """A configuration with its code, or None and the reason why there is none."""

    configuration: Configuration
    code: CodeObject | None
    reason: str = ""


@dataclass(frozen=True)
class CandidateLaunch:
    """A planned launch with what came of each of its candidates, in their order."""

    planned: PlannedLaunch
    compiled: tuple[CompiledCandidate, ...]

    def code(self, configuration: Configuration) -> CodeObject:
        return next(
            c.code for c in self.compiled if c.configuration == configuration and c.code is not None
        )

    @property
    def usable(self) -> tuple[Configuration, ...]:
        """The configurations that have code, the preferred first."""
        return tuple(c.configuration for c in self.compiled if c.code is not None)


@dataclass(frozen=True)
class CompiledCandidates:
    """All candidates of a plan for one target. `sources` pairs each kernel with the sha256 of what
    it is compiled from, `cubins` each code object's sha256 with its bytes."""

    target: Target
    toolchain: Toolchain
    sources: tuple[tuple[str, str], ...]
    signatures: tuple[Signature, ...]
    launches: tuple[CandidateLaunch, ...]
    cubins: Mapping[str, bytes]

    @property
    def count(self) -> int:
        """Candidates in all, those without code too."""
        return sum(len(entry.compiled) for entry in self.launches)

    def write(self, folder: Path) -> Path:
        """Write `candidates.zip` into `folder`. Raises `HostError` where there is no room."""
        path = folder / FILE
        temporary = folder / f".{FILE}.{uuid.uuid4().hex}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            try:
                with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
                    _put(archive, "index.json", canonical_json(self._index()).encode())
                    for sha256 in sorted(self.cubins):
                        _put(archive, object_path(sha256), self.cubins[sha256])
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise write_error(error, folder, sum(map(len, self.cubins.values()))) from error
        return path

    def _index(self) -> dict[str, Any]:
        place = {signature.id: number for number, signature in enumerate(self.signatures)}
        return {
            "format": FORMAT,
            "launch_abi": launch_abi(),
            "target": self.target.name,
            "toolchain": asdict(self.toolchain),
            "sources": dict(self.sources),
            "signatures": [signature.to_json() for signature in self.signatures],
            "launches": [
                {
                    "launch": entry.planned.launch.to_json(),
                    "signatures": [place[name] for name in entry.planned.signatures],
                    "candidates": [
                        {
                            "configuration": c.configuration.to_json(),
                            "code": asdict(c.code) if c.code else None,
                            "reason": c.reason,
                        }
                        for c in entry.compiled
                    ],
                }
                for entry in self.launches
            ],
        }

    @classmethod
    def read(cls, folder: Path) -> CompiledCandidates:
        """Raises `BundleError` for a file that is not whole, and `MismatchError` for candidates
        that were compiled for another launch interface than this release has."""
        path = folder / FILE if folder.is_dir() else folder
        try:
            with zipfile.ZipFile(path) as archive:
                index = parse_json(archive.read("index.json"))
                if (index["format"], index["launch_abi"]) != (FORMAT, launch_abi()):
                    raise _other_interface(path)
                return _from_index(index, archive)
        except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            raise BundleError(
                "the compiled candidates cannot be read",
                where=str(path),
                found=f"{type(error).__name__}: {error}",
                wanted="what `ssd-aot tune --compile-only` wrote",
                mend="compile them again",
            ) from error


def _from_index(index: dict[str, Any], archive: zipfile.ZipFile) -> CompiledCandidates:
    signatures = tuple(Signature.from_json(s) for s in index["signatures"])
    gpu = target(index["target"])
    launches = tuple(_launch(entry, signatures, gpu) for entry in index["launches"])
    codes = (c.code for entry in launches for c in entry.compiled if c.code is not None)
    cubins = {code.sha256: archive.read(code.path) for code in codes}
    for sha256, cubin in cubins.items():
        if hashlib.sha256(cubin).hexdigest() != sha256:
            raise ValueError(f"{object_path(sha256)} was changed")
    facts = index["toolchain"]
    environment = tuple((name, value) for name, value in facts.pop("environment"))
    return CompiledCandidates(
        target=gpu,
        toolchain=Toolchain(**facts, environment=environment),
        sources=tuple(sorted(index["sources"].items())),
        signatures=signatures,
        launches=launches,
        cubins=cubins,
    )


def _launch(
    entry: dict[str, Any], signatures: tuple[Signature, ...], gpu: Target
) -> CandidateLaunch:
    compiled = tuple(
        CompiledCandidate(
            Configuration.from_json(c["configuration"]), _code(c["code"]), c["reason"]
        )
        for c in entry["candidates"]
    )
    planned = PlannedLaunch(
        launch=Launch.from_json(entry["launch"]),
        target=gpu,
        candidates=tuple(c.configuration for c in compiled),
        signatures=tuple(signatures[number].id for number in entry["signatures"]),
    )
    return CandidateLaunch(planned, compiled)


def _code(facts: dict[str, Any] | None) -> CodeObject | None:
    if facts is None:
        return None
    parameters = tuple((name, kind) for name, kind in facts.pop("parameters"))
    return CodeObject(**facts, parameters=parameters)


def _put(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    info = zipfile.ZipInfo(name, _EPOCH)
    archive.writestr(info, content, zipfile.ZIP_DEFLATED)


def _other_interface(path: Path) -> MismatchError:
    return MismatchError(
        "the candidates were compiled for another launch interface",
        where=str(path),
        found="another format or launch interface",
        wanted=f"launch interface {launch_abi()}",
        mend="compile them with this release: ssd-aot tune --compile-only",
    )
