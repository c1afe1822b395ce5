"""Archives for the tests: those of small bundles, and others written header by header."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ssd_aot.archive.packing import stream
from ssd_aot.bundle.store import Bundle

END = bytes(1024)


@dataclass
class Part:
    """A member as it is written: a header, the data behind it, and what fills the last block."""

    info: tarfile.TarInfo
    data: bytes
    form: Literal[0, 1, 2] = tarfile.USTAR_FORMAT
    padding: bytes | None = None

    @property
    def bytes(self) -> bytes:
        padding = bytes(-len(self.data) % 512) if self.padding is None else self.padding
        return self.info.tobuf(self.form, "utf-8", "surrogateescape") + self.data + padding


Change = Callable[[list[Part]], None]
"""Makes another archive of the parts of one."""


def archive(bundle: Bundle, prefix: str = "") -> bytes:
    return b"".join(stream(bundle, prefix))


def parts(data: bytes) -> list[Part]:
    return list(_parts(data))


def _parts(data: bytes) -> Iterator[Part]:
    place = 0
    while any(data[place : place + 512]):
        info = tarfile.TarInfo.frombuf(data[place : place + 512], "utf-8", "surrogateescape")
        place += 512
        yield Part(info, data[place : place + info.size])
        place += -(-info.size // 512) * 512


def joined(written: list[Part], end: bytes = END) -> bytes:
    return b"".join(part.bytes for part in written) + end


def changed(data: bytes, change: Change) -> bytes:
    written = parts(data)
    change(written)
    return joined(written)


def member(name: str, data: bytes = b"", **fields: object) -> Part:
    """A plain file as bundles have them, but for the given fields of its header."""
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = len(data), 315_532_800, 0o644
    for field, value in fields.items():
        setattr(info, field, value)
    return Part(info, data)


def last(written: list[Part]) -> Part:
    """A file in `objects/`: the members are in the order of their paths."""
    return next(p for p in reversed(written) if "objects/" in p.info.name)


def setting(**fields: object) -> Change:
    """The change that sets these fields in the header of one code object."""

    def change(written: list[Part]) -> None:
        for field, value in fields.items():
            setattr(last(written).info, field, value)

    return change


def without_data(**fields: object) -> Change:
    """The change to a member of another type, which has no data: a link, a device."""

    def change(written: list[Part]) -> None:
        part = last(written)
        part.data = b""
        for field, value in {"size": 0, **fields}.items():
            setattr(part.info, field, value)

    return change


def before(*added: Part) -> Change:
    """The change that puts members in front of one code object."""

    def change(written: list[Part]) -> None:
        place = written.index(last(written))
        written[place:place] = added

    return change


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Everything below a folder: by path its mode, and its content or where it links."""
    found = {}
    for place in sorted(folder.rglob("*")):
        content = b""
        if place.is_symlink():
            content = str(place.readlink()).encode()
        elif place.is_file():
            content = place.read_bytes()
        found[place.relative_to(folder).as_posix()] = (place.lstat().st_mode, content)
    return found
