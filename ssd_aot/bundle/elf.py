"""What a cubin says about itself as an ELF file: its architecture, its sections, its symbols.

Numbers: ELF-64 object file format for the layouts; EM_CUDA is 190 in the ELF registry.
Where `e_flags` keeps the architecture was read off cubins that ptxas 12.8 (ABI 7 up to sm_90, ABI 8
from sm_100) and ptxas 13.1 (ABI 8) made.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from ssd_aot.errors import BundleError

EM_CUDA = 190
_HEADER_BYTES = 64
# Name, type, flags, address, offset, size, link, info, alignment, entry size.
_SECTION = struct.Struct("<IIQQQQIIQQ")
# Name, type and binding, visibility, section, value, size.
_SYMBOL = struct.Struct("<IBBHQQ")
_NULL, _SYMBOLS, _NO_BITS = 0, 2, 8
_ACCELERATED = {7: 0x800, 8: 0x8}
_NUMBER_SHIFT = {7: 0, 8: 8}


def cubin_architecture(data: bytes) -> str:
    """The architecture a cubin was assembled for: `sm_90`, `sm_90a`.

    An `a` in the answer is certain; its absence is not, since ptxas 13.1 marks no cubin with it.
    So compare with `same_architecture`. Raises BundleError for anything that is not a cubin.
    """
    if len(data) < _HEADER_BYTES:
        raise BundleError(
            "a cubin is cut short", found=f"{len(data)} bytes", wanted=f"{_HEADER_BYTES} or more"
        )
    if data[:4] != b"\x7fELF":
        raise BundleError("not a cubin", found=f"bytes {data[:4].hex(' ')}", wanted="an ELF file")
    elf_class, byte_order, abi = data[4], data[5], data[8]
    if (elf_class, byte_order) != (2, 1):
        raise BundleError(
            "not a cubin",
            found=f"ELF class {elf_class}, byte order {byte_order}",
            wanted="class 2 (64 bits), byte order 1 (little endian)",
        )
    (machine,) = struct.unpack_from("<H", data, 18)
    if machine != EM_CUDA:
        raise BundleError(
            "not a cubin", found=f"ELF machine {machine}", wanted=f"ELF machine {EM_CUDA} (CUDA)"
        )
    if abi not in _NUMBER_SHIFT:
        raise BundleError(
            "a cubin of an unknown form", found=f"CUDA ELF ABI {abi}", wanted="ABI 7 or 8"
        )
    (flags,) = struct.unpack_from("<I", data, 48)
    number = flags >> _NUMBER_SHIFT[abi] & 0xFF
    return f"sm_{number}{'a' if flags & _ACCELERATED[abi] else ''}"


def architecture_number(arch: str) -> int:
    """90 for `sm_90` and `sm_90a`. Raises BundleError for another spelling."""
    match = re.fullmatch(r"sm_(\d+)[af]?", arch)
    if match is None:
        raise BundleError("not an architecture", found=repr(arch), wanted="such as sm_90a")
    return int(match[1])


def same_architecture(found: str, wanted: str) -> bool:
    """Whether a cubin's header agrees with the target's architecture, as far as it can tell: by
    number. Both `sm_90` and `sm_90a` code run on compute capability 9.0 alone of all targets."""
    return architecture_number(found) == architecture_number(wanted)


@dataclass(frozen=True)
class Section:
    """A section; `content` is empty for one that takes no room in the file. `link` is the number
    of the section that this one's names are in."""

    name: str
    kind: int
    link: int
    content: bytes


@dataclass(frozen=True)
class Symbol:
    """A symbol; `value` is its offset in its section, in bytes."""

    name: str
    kind: int
    value: int
    size_bytes: int


def read_sections(data: bytes) -> tuple[Section, ...]:
    """The sections of a 64-bit little-endian ELF file. Raises BundleError for one not whole."""
    cubin_architecture(data)
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names_at = struct.unpack_from("<HHH", data, 58)
    if size != _SECTION.size or table + count * size > len(data) or names_at >= count:
        raise _not_whole("its table of sections lies outside of it")
    headers = [_SECTION.unpack_from(data, table + index * size) for index in range(count)]
    contents = []
    for _, kind, _, _, offset, length, *_ in headers:
        length = 0 if kind in (_NULL, _NO_BITS) else length
        if offset + length > len(data):
            raise _not_whole("a section lies outside of it")
        contents.append(data[offset : offset + length])
    return tuple(
        Section(_text(contents[names_at], header[0]), header[1], header[6], content)
        for header, content in zip(headers, contents, strict=True)
    )


def read_symbols(sections: Sequence[Section]) -> tuple[Symbol, ...]:
    """The symbols of a file's symbol table, in its order; none where there is no table."""
    table = next((section for section in sections if section.kind == _SYMBOLS), None)
    if table is None:
        return ()
    if table.link >= len(sections) or len(table.content) % _SYMBOL.size:
        raise _not_whole("its table of symbols is cut short")
    names = sections[table.link].content
    return tuple(
        Symbol(_text(names, name), kind & 0xF, value, size)
        for name, kind, _, _, value, size in _SYMBOL.iter_unpack(table.content)
    )


def _text(names: bytes, start: int) -> str:
    end = names.find(b"\0", start)
    if end < 0:
        raise _not_whole("a name lies outside of it")
    return names[start:end].decode("utf-8", "replace")


def _not_whole(found: str) -> BundleError:
    return BundleError("a cubin is not whole", found=found, wanted="a whole ELF file")
