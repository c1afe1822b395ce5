"""Builders of cubins for the tests: whole ELF files with a kernel whose code is none."""

from __future__ import annotations

import struct
from collections.abc import Sequence

PARAMETERS = ("*bf16", "*bf16", "i32")
"""The types of the parameters that `bundle_builders.code_object` gives a kernel."""

_NULL, _CODE, _SYMBOLS, _STRINGS, _INFO = 0, 1, 2, 3, 0x70000000


def fake_cubin(
    number: int,
    payload: bytes = b"",
    *,
    abi: int = 8,
    suffix: bool = False,
    function: str = "chunk_scan",
    registers: int = 128,
    threads: int = 128,
    parameters: Sequence[str] = PARAMETERS,
) -> bytes:
    """A cubin as ptxas writes it for `sm_<number>`, with one kernel and `payload` in its code."""
    sizes = [4 if kind in ("i32", "fp32") else 8 for kind in parameters] + [8, 8]
    code = b"\x18\x79" + bytes(13) + b"\x0f" + payload
    symbols = bytes(24) + struct.pack("<IBBHQQ", 1, 0x12, 0x10, 3, 0, len(code))
    sections = [
        ("", _NULL, 0, b""),
        (".strtab", _STRINGS, 0, f"\0{function}\0".encode()),
        (".symtab", _SYMBOLS, 1, symbols),
        (f".text.{function}", _CODE, 2, code),
        (".nv.info", _INFO, 2, _record(0x2F, struct.pack("<II", 1, registers))),
        (f".nv.info.{function}", _INFO, 2, _launch_records(sizes, threads)),
    ]
    return _file(_flags(number, abi, suffix), abi, sections)


def _flags(number: int, abi: int, suffix: bool) -> int:
    return number << 8 | suffix << 3 if abi == 8 else number | suffix << 11


def _record(attribute: int, value: bytes) -> bytes:
    return struct.pack("<BBH", 4, attribute, len(value)) + value


def _launch_records(sizes: Sequence[int], threads: int) -> bytes:
    # ptxas lists the parameters from the last to the first, behind a record without a size.
    content = struct.pack("<BBH", 3, 0x1B, 255)
    for ordinal in reversed(range(len(sizes))):
        offset, packed = sum(sizes[:ordinal]), sizes[ordinal] << 18 | 0x1F000
        content += _record(0x17, struct.pack("<IHHI", 0, ordinal, offset, packed))
    return content + _record(0x10, struct.pack("<III", threads, 1, 1))


def _file(flags: int, abi: int, sections: Sequence[tuple[str, int, int, bytes]]) -> bytes:
    names = b"".join(name.encode() + b"\0" for name, *_ in sections) + b".shstrtab\0"
    sections = [*sections, (".shstrtab", _STRINGS, 0, names)]
    body, table, at = b"", b"", 0
    for name, kind, link, content in sections:
        table += struct.pack(
            "<IIQQQQIIQQ", at, kind, 0, 0, 64 + len(body), len(content), link, 0, 1, 0
        )
        at += len(name) + 1
        body += content
    ident = b"\x7fELF" + bytes((2, 1, 1, 0x41, abi)) + bytes(7)
    header = struct.pack(
        "<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64 + len(body), flags, 64, 0, 0, 64, len(sections),
        len(sections) - 1,
    )  # fmt: skip
    return ident + header + body + table
