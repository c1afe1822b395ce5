"""Reading the tar stream of a bundle, from anybody: each byte is computed or checked, none trusted.

The only numbers taken from the stream are the manifest's size, which is limited, and its content,
which is read as strictly as from a bundle's folder and whose digest can be pinned. From it follows
what must come next, so links, devices, odd modes, names that lead elsewhere, duplicates, extended
headers and sparse files are refused as what they are: other bytes than those wanted.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Callable
from dataclasses import dataclass

from ssd_aot.archive.members import (
    BLOCK,
    END,
    MAX_MANIFEST_BYTES,
    SIZE_FIELD,
    SMALLER,
    Member,
    check_limits,
    following,
    leading,
    manifest_member,
)
from ssd_aot.bundle.layout import CHECKSUM_FILE, MANIFEST_FILE, checksum_text
from ssd_aot.bundle.manifest import Manifest
from ssd_aot.bundle.pin import refuse_other
from ssd_aot.errors import BundleError

Read = Callable[[int], bytes]
"""Up to so many bytes of a stream, none only at its end."""

_PIECE = 1 << 20
_AGAIN = "get the archive again from where it was packed"
_PACK = "give an archive that `ssd-aot pack` wrote"
_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
}
_KINDS = {
    tarfile.REGTYPE: "a file",
    tarfile.AREGTYPE: "a file",
    tarfile.CONTTYPE: "a contiguous file",
    tarfile.DIRTYPE: "a folder",
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a character device",
    tarfile.BLKTYPE: "a block device",
    tarfile.FIFOTYPE: "a pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
    tarfile.GNUTYPE_LONGNAME: "a long name",
    tarfile.GNUTYPE_LONGLINK: "a long link name",
    tarfile.XHDTYPE: "an extended header",
    tarfile.XGLTYPE: "a global extended header",
}


@dataclass(frozen=True)
class Contents:
    """A whole bundle in memory: its manifest, and each file that it lists by path."""

    manifest: Manifest
    digest: str
    files: dict[str, bytes]


def read_bundle(read: Read, where: str, prefix: str = "", pinned: str | None = None) -> Contents:
    """Everything in the stream that `where` names, its paths below `prefix`.

    Raises BundleError for a stream that differs anywhere from what packing this bundle writes,
    MismatchError for another bundle than the pinned one.
    """
    return _Reader(read, where).contents(prefix, pinned)


class _Reader:
    def __init__(self, read: Read, where: str) -> None:
        self._read, self._where = read, where

    def contents(self, prefix: str, pinned: str | None) -> Contents:
        for folder in leading(prefix):
            self._header(folder)
        manifest, digest = self._manifest(prefix, pinned)
        digests = {path: listed for path, listed, _ in manifest.files}
        digests[CHECKSUM_FILE] = hashlib.sha256(checksum_text(digest).encode()).hexdigest()
        files: dict[str, bytes] = {}
        for member, path in following(manifest, prefix):
            self._header(member)
            if path:
                data = self._content(member)
                found = hashlib.sha256(data).hexdigest()
                if found != digests[path]:
                    wanted = f"sha256 {digests[path]}"
                    raise self._refuse(f"{path} was changed", f"sha256 {found}", wanted, _AGAIN)
                files[path] = data
        self._end()
        del files[CHECKSUM_FILE]
        return Contents(manifest, digest, files)

    def _manifest(self, prefix: str, pinned: str | None) -> tuple[Manifest, str]:
        header = self._exactly(BLOCK, "the first header")
        digits = header[SIZE_FIELD].rstrip(b"\0")
        size = int(digits, 8) if digits.isdigit() and not digits.strip(b"01234567") else 0
        member = manifest_member(size, prefix)
        if header != member.header:
            raise self._no_archive(header, member)
        if size > MAX_MANIFEST_BYTES:
            wanted = f"at most {MAX_MANIFEST_BYTES}"
            raise self._refuse("a manifest too large", f"{size} bytes", wanted, SMALLER)
        text = self._content(member)
        digest = hashlib.sha256(text).hexdigest()
        refuse_other(digest, pinned, self._where)
        manifest = Manifest.from_json_text(text, f"{self._where}: {MANIFEST_FILE}")
        if manifest.digest != digest:
            what = f"{MANIFEST_FILE} is not in its canonical form"
            raise self._refuse(what, digest, manifest.digest, _AGAIN)
        check_limits(manifest)
        return manifest, digest

    def _header(self, member: Member) -> None:
        wanted = member.header
        found = self._exactly(BLOCK, f"the header of {member}")
        if found != wanted[:BLOCK]:
            what = "the archive does not hold what its manifest lists"
            raise self._refuse(what, described(found), str(member), _AGAIN)
        # A path too long for one block has an extended header before its own.
        if self._exactly(len(wanted) - BLOCK, f"the header of {member}") != wanted[BLOCK:]:
            what = "the archive does not hold what its manifest lists"
            raise self._refuse(what, "another extended header", str(member), _AGAIN)

    def _content(self, member: Member) -> bytes:
        data = self._exactly(member.size_bytes or 0, str(member))
        if self._exactly(len(member.padding), str(member)) != member.padding:
            what = f"something is hidden behind {member.path}"
            raise self._refuse(what, "other bytes than zeros in its last block", "zeros", _AGAIN)
        return data

    def _end(self) -> None:
        end = self._exactly(len(END), "the end of the archive")
        if end != END:
            what = "the archive holds more than its manifest lists"
            raise self._refuse(what, described(end[:BLOCK]), "the end of the archive", _AGAIN)
        if self._read(1):
            what = "something follows the end of the archive"
            raise self._refuse(what, "more bytes", "the end of the file", _AGAIN)

    def _exactly(self, size: int, part: str) -> bytes:
        """So many bytes. They come in pieces: a size that is a lie costs no memory."""
        pieces, missing = [], size
        while missing:
            piece = self._read(min(missing, _PIECE))
            if not piece:
                found = f"{size - missing} bytes of {part}"
                raise self._refuse("the archive ends too early", found, f"{size} bytes", _AGAIN)
            pieces.append(piece)
            missing -= len(piece)
        return b"".join(pieces)

    def _no_archive(self, header: bytes, member: Member) -> BundleError:
        for magic, name in _COMPRESSED.items():
            if header.startswith(magic):
                mend = "decompress it on the way: … | ssd-aot unpack - --out DIR"
                return self._refuse("the archive is compressed", name, "a tar archive", mend)
        found = described(header)
        return self._refuse("no archive of a bundle", found, f"the file {member.path} first", _PACK)

    def _refuse(self, what: str, found: str, wanted: str, mend: str) -> BundleError:
        return BundleError(what, self._where, found, wanted, mend)


def described(block: bytes) -> str:
    """What a block says it is the header of, for messages only."""
    if not any(block):
        return "the end of the archive"
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.TarError, ValueError):
        return "bytes that are no tar header"
    kind = _KINDS.get(info.type, f"a member of type {info.type!r}")
    target = f" to {info.linkname!r}" if info.linkname else ""
    owner = f", owner {info.uid}:{info.gid}" if info.uid or info.gid else ""
    return f"{kind} {info.name!r}{target} of {info.size} bytes, mode {info.mode:o}{owner}"
