"""Reading a bundle: its manifest, its code objects, and a full check of its files."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from ssd_aot.bundle.layout import CHECKSUM_FILE, MANIFEST_FILE, bundle_path, checksum_text
from ssd_aot.bundle.manifest import CodeObject, Manifest, VariantEntry
from ssd_aot.errors import BundleError

_COPY = "copy the bundle again from where it was built, or build it anew"
_REMOVE = "remove it: a bundle holds only what its manifest lists"


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a bundle's files.

    `kind`: `missing`, `unlisted`, `size`, `content`, `not a file` (a link, a socket, a folder in
    a file's place), `not a folder`, `writable` (by everyone), or `unreadable`. `path` is relative
    to the bundle, `.` for its folder. `variants` names those whose code object the file is.
    """

    kind: str
    path: str
    variants: tuple[str, ...]
    found: str
    wanted: str
    mend: str

    def __str__(self) -> str:
        used = f" (code of {', '.join(self.variants)})" if self.variants else ""
        return f"{self.path}{used}: found {self.found}, wanted {self.wanted}; {self.mend}"


@dataclass(frozen=True)
class Bundle:
    """A bundle whose manifest was read and agrees with its checksum; `digest` is its sha256."""

    path: Path
    manifest: Manifest
    digest: str

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Bundle:
        """Read and check the manifest alone; the path may be relative, of any owner, read-only.

        Raises UsageError for an empty path, BundleError where no bundle is or its manifest is not
        whole.
        """
        folder = bundle_path(path)
        text, checksum = _manifest_of(folder)
        digest = hashlib.sha256(text).hexdigest()
        if checksum != checksum_text(digest).encode():
            # Either file may be the changed one; the message names both.
            raise BundleError(
                f"{MANIFEST_FILE} or {CHECKSUM_FILE} was changed",
                where=str(folder / MANIFEST_FILE),
                found=f"sha256 {digest}",
                wanted=f"{checksum[:64].decode('ascii', 'replace')!r} as {CHECKSUM_FILE} has it",
                mend=_COPY,
            )
        manifest = Manifest.from_json_text(text, str(folder / MANIFEST_FILE))
        return cls(folder, manifest, digest)

    def read_object(self, entry: CodeObject | VariantEntry) -> bytes:
        """The code object's bytes, checked against the manifest. Raises BundleError."""
        code = entry.object if isinstance(entry, VariantEntry) else entry
        file = self.path / code.path
        try:
            data = _read(file)
        except OSError as error:
            raise BundleError(
                "a code object cannot be read",
                where=str(file),
                found=error.strerror or str(error),
                wanted=f"a file of {code.size_bytes} bytes",
                mend=_COPY,
            ) from error
        found = hashlib.sha256(data).hexdigest()
        if len(data) != code.size_bytes or found != code.sha256:
            raise BundleError(
                "a code object was changed",
                where=str(file),
                found=f"{len(data)} bytes, sha256 {found}",
                wanted=f"{code.size_bytes} bytes, sha256 {code.sha256}",
                mend=_COPY,
            )
        return data

    def read_listed(self, path: str) -> bytes:
        """A file by its path in the bundle, unchecked. Raises OSError unless it is a plain file."""
        return _read(self.path / path)

    def variants_by_path(self) -> dict[str, tuple[str, ...]]:
        """The names of the variants that use each code object's file."""
        names: dict[str, list[str]] = {}
        for entry in self.manifest.variants:
            names.setdefault(entry.object.path, []).append(entry.name)
        return {path: tuple(sorted(found)) for path, found in names.items()}

    def check_files(self, *, contents: bool = True) -> list[Problem]:
        """Everything wrong with the files, by path; none for a bundle as it was written.

        Every listed file is there as a plain file of its size and, with `contents`, its sha256;
        there is nothing else, be it a temporary or lock file; nothing is writable by everyone.
        Writable by the group is accepted: Kubernetes makes volumes so for the serving process's
        own group (fsGroup), and user-private groups do with umask 002.
        """
        return _FileCheck(self, contents).run()


def _manifest_of(folder: Path) -> tuple[bytes, bytes]:
    """The manifest and its checksum, both of the same bundle even while another replaces it."""
    for attempt in range(3):
        try:
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise _unreadable(folder, error, "a bundle's folder") from error
        try:
            return _read(MANIFEST_FILE, handle), _read(CHECKSUM_FILE, handle)
        except OSError as error:
            if attempt < 2 and _replaced(folder, handle):
                continue
            missing = str(error.filename or MANIFEST_FILE)
            raise _unreadable(folder / missing, error, f"a bundle with its {missing}") from error
        finally:
            os.close(handle)
    raise AssertionError("the last attempt returns or raises")


def _replaced(folder: Path, handle: int) -> bool:
    try:
        return not os.path.samestat(os.stat(folder), os.fstat(handle))
    except OSError:
        return False


def _unreadable(path: Path, error: OSError, wanted: str) -> BundleError:
    return BundleError(
        "no bundle can be read here",
        where=str(path),
        found=error.strerror or str(error),
        wanted=wanted,
        mend="give the folder that `ssd-aot build` wrote",
    )


def _read(path: str | Path, folder: int | None = None) -> bytes:
    # Neither a link nor a pipe is followed or waited for.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(path, flags, dir_fd=folder)
    with open(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(0, "not a plain file", str(path))
        return file.read()


class _FileCheck:
    """One walk over a bundle's folder against its manifest."""

    def __init__(self, bundle: Bundle, contents: bool) -> None:
        checksum = checksum_text(bundle.digest).encode()
        self._bundle = bundle
        self._contents = contents
        self._files: dict[str, tuple[str, int | None]] = {
            path: (digest, size) for path, digest, size in bundle.manifest.files
        }
        self._files[MANIFEST_FILE] = (bundle.digest, None)
        self._files[CHECKSUM_FILE] = (hashlib.sha256(checksum).hexdigest(), len(checksum))
        self._folders = {parent.as_posix() for path in self._files for parent in Path(path).parents}
        self._variants = bundle.variants_by_path()
        self._seen: set[str] = set()
        self._problems: list[Problem] = []

    def run(self) -> list[Problem]:
        self._folder(".")
        for path in sorted(self._files.keys() - self._seen):
            self._add("missing", path, "no file", self._wanted(path), _COPY)
        return sorted(self._problems, key=lambda problem: (problem.path, problem.kind))

    def _add(self, kind: str, path: str, found: str, wanted: str, mend: str) -> None:
        variants = self._variants.get(path, ())
        self._problems.append(Problem(kind, path, variants, found, wanted, mend))

    def _wanted(self, path: str) -> str:
        digest, size = self._files[path]
        return f"sha256 {digest}" if size is None else f"{size} bytes, sha256 {digest}"

    def _folder(self, path: str) -> None:
        place = self._bundle.path / path
        try:
            self._check_mode(path, os.lstat(place).st_mode)
            names = sorted(os.listdir(place))
        except OSError as error:
            self._add("unreadable", path, error.strerror or str(error), "a folder", _COPY)
            return
        for name in names:
            self._entry(name if path == "." else f"{path}/{name}")

    def _entry(self, path: str) -> None:
        try:
            mode = os.lstat(self._bundle.path / path).st_mode
        except OSError as error:
            self._add("unreadable", path, error.strerror or str(error), "a file", _COPY)
            return
        if path in self._files:
            self._seen.add(path)
            if not stat.S_ISREG(mode):
                self._add("not a file", path, _kind(mode), "a plain file", _COPY)
            else:
                self._check_mode(path, mode)
                self._check_file(path)
        elif path in self._folders:
            if stat.S_ISDIR(mode):
                self._folder(path)
            else:
                self._add("not a folder", path, _kind(mode), "a folder", _COPY)
        else:
            self._add("unlisted", path, _kind(mode), "nothing of that name", _REMOVE)

    def _check_mode(self, path: str, mode: int) -> None:
        if mode & stat.S_IWOTH:
            place = self._bundle.path / path
            found = f"mode {stat.S_IMODE(mode):04o}, writable by everyone"
            self._add("writable", path, found, "not writable by others", f"chmod o-w {place}")

    def _check_file(self, path: str) -> None:
        digest, size = self._files[path]
        try:
            found_size = os.lstat(self._bundle.path / path).st_size
            if size is not None and found_size != size:
                self._add("size", path, f"{found_size} bytes", f"{size} bytes", _COPY)
            elif self._contents:
                found = hashlib.sha256(_read(self._bundle.path / path)).hexdigest()
                if found != digest:
                    self._add("content", path, f"sha256 {found}", f"sha256 {digest}", _COPY)
        except OSError as error:
            self._add("unreadable", path, error.strerror or str(error), "a plain file", _COPY)


def _kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a file" if stat.S_ISREG(mode) else "a special file"
