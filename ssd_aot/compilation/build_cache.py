"""The partial store beside a build's output: what is compiled stays compiled if the build dies."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

import filelock

from ssd_aot.bundle.manifest import CodeObject, Toolchain
from ssd_aot.errors import BuildError
from ssd_aot.launches import Variant, canonical_json
from ssd_aot.targets import Target
from ssd_aot.triton_compat import CompiledObject, HostSource
from ssd_aot.writing import write_error

FORMAT = 2
"""Part of every key: raised when an entry of an older form could not be read rightly."""

_LOCK_WAIT_S = 3.0
"""The workers of a killed build end within a second or two and may hold its lock until then."""


def entry_key(
    variant: Variant,
    target: Target,
    kernel_source_hash: str,
    toolchain: Toolchain,
    triton_key: str = "",
) -> str:
    """sha256 over all that decides a compilation; with a `triton_key` its result is an entry for
    Triton's own cache.

    Of the target only the architecture counts, so models of one architecture share their entries;
    of the toolchain everything but the version string, which its content stands for.
    """
    compiler = asdict(toolchain)
    del compiler["triton_version"]
    form = {
        "format": FORMAT,
        "variant": variant.identity,
        "arch": target.arch,
        "kernel": kernel_source_hash,
        "toolchain": compiler,
        "triton_key": triton_key,
    }
    return hashlib.sha256(canonical_json(form).encode()).hexdigest()


class BuildCache:
    """The folder `OUT.partial`, held by one build at a time.

    Every entry is one file, written beside its place and renamed, with a hash over its content in
    the first line: a reader gets a whole entry or none. Raises BuildError when another build
    holds the folder, HostError when it cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._entries = self.folder / "entries"
        self._lock = filelock.FileLock(self.folder / "lock")

    @classmethod
    def beside(cls, out: Path) -> BuildCache:
        """The store of the build that writes `out`."""
        return cls(out.with_name(out.name + ".partial"))

    @property
    def scratch(self) -> Path:
        """A folder for temporary files; what a killed build left there goes with the next."""
        return self.folder / "scratch"

    def __enter__(self) -> BuildCache:
        with self._writing(self.folder, 4096):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(timeout=_LOCK_WAIT_S)
            except filelock.Timeout as error:
                raise BuildError(
                    "another build writes here",
                    where=str(self.folder),
                    found=f"held by process {self._holder()}",
                    mend="wait for it to finish, stop it, or build to another folder",
                ) from error
            try:
                self._take()
            except BaseException:
                self._lock.release()
                raise
        return self

    def _take(self) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir(exist_ok=True)
        self._entries.mkdir(exist_ok=True)
        # Beside the lock and not in it: acquiring a lock file empties it.
        (self.folder / "holder").write_text(f"{os.getpid()}\n")

    def _holder(self) -> str:
        try:
            return (self.folder / "holder").read_text().strip() or "unknown"
        except OSError:
            return "unknown"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        shutil.rmtree(self.scratch, ignore_errors=True)
        self._lock.release()

    def get(self, key: str) -> CompiledObject | None:
        """The entry, or None where there is none or it is not whole; the latter is removed."""
        path = self._entries / key
        try:
            content = path.read_bytes()
        except OSError:
            return None
        entry = _parse(content)
        if entry is None:
            with contextlib.suppress(OSError):
                path.unlink()
        return entry

    def put(self, key: str, entry: CompiledObject) -> None:
        """Raises HostError, with the place and the bytes needed, when there is no room."""
        form = {**asdict(entry.code), "metadata": entry.metadata.decode(),
                "launcher": entry.launcher and asdict(entry.launcher)}  # fmt: skip
        facts = canonical_json(form).encode()
        body = facts + b"\n" + entry.cubin
        content = hashlib.sha256(body).hexdigest().encode() + b"\n" + body
        temporary = self.scratch / f"{key}.{uuid.uuid4().hex}"
        with self._writing(self._entries, len(content)):
            try:
                temporary.write_bytes(content)
                temporary.replace(self._entries / key)
            finally:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)

    def discard(self) -> None:
        """Removes the whole folder; the build that holds it is done with it."""
        self._lock.release()
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def _writing(self, place: Path, needed_bytes: int) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise write_error(error, place, needed_bytes) from error


def _parse(content: bytes) -> CompiledObject | None:
    stated, _, body = content.partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != stated:
        return None
    facts, _, cubin = body.partition(b"\n")
    try:
        values = json.loads(facts)
        parameters = tuple((name, kind) for name, kind in values.pop("parameters"))
        metadata, launcher = values.pop("metadata").encode(), values.pop("launcher")
        code = CodeObject(**values, parameters=parameters)
        return CompiledObject(cubin, code, metadata, launcher and HostSource(**launcher))
    except (ValueError, TypeError, KeyError):
        return None
