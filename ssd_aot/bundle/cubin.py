"""What a cubin says about the kernel in it, beside its architecture.

The form of `.nv.info` and its attribute numbers were read off cubins that ptxas 12.8 and 13.1 made,
beside what `cuobjdump -elf` prints for them: records of a format byte and an attribute byte, with
a value of two bytes or, in format 4, of as many as the next two bytes say.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ssd_aot.bundle.elf import Section, read_sections, read_symbols
from ssd_aot.errors import BundleError

_SIZED = 4
_REQUIRED_THREADS = 0x10
_PARAMETER = 0x17
_REGISTERS = 0x2F
_FUNCTION = 2
"""STT_FUNC of ELF."""

INSTRUCTION_BYTES = 16
"""Of every architecture from sm_70 on."""


@dataclass(frozen=True)
class KernelFacts:
    """One kernel as its cubin tells it: `code` is its instructions, `registers` those of a thread,
    `threads` what a block must have (0 where it may have any number), `parameter_bytes` the size
    of each parameter in launch order."""

    function: str
    code: bytes
    registers: int
    threads: int
    parameter_bytes: tuple[int, ...]


def kernels_in(data: bytes) -> dict[str, KernelFacts]:
    """The kernels of a cubin by name. Raises BundleError for a file that is not whole."""
    sections = read_sections(data)
    by_name = {section.name: section for section in sections}
    symbols = read_symbols(sections)
    registers = dict(
        struct.unpack("<II", value)
        for attribute, value in _records(by_name.get(".nv.info"))
        if attribute == _REGISTERS and len(value) == 8
    )
    found = {}
    for index, symbol in enumerate(symbols):
        text = by_name.get(f".text.{symbol.name}")
        info = by_name.get(f".nv.info.{symbol.name}")
        # A device function that a kernel calls has code and no information on how to launch it.
        if symbol.kind == _FUNCTION and text is not None and info is not None:
            code = text.content[symbol.value : symbol.value + symbol.size_bytes]
            threads, parameters = _launch_facts(info)
            found[symbol.name] = KernelFacts(
                symbol.name, code, registers.get(index, 0), threads, parameters
            )
    return found


def _launch_facts(info: Section) -> tuple[int, tuple[int, ...]]:
    threads = 0
    sizes: dict[int, int] = {}
    for attribute, value in _records(info):
        if attribute == _REQUIRED_THREADS and len(value) == 12:
            x, y, z = struct.unpack("<III", value)
            threads = x * y * z
        elif attribute == _PARAMETER and len(value) == 12:
            _, ordinal, _, packed = struct.unpack("<IHHI", value)
            sizes[ordinal] = packed >> 18
    return threads, tuple(sizes[ordinal] for ordinal in sorted(sizes))


def _records(section: Section | None) -> Iterator[tuple[int, bytes]]:
    """The attributes of an information section with their values."""
    content = section.content if section else b""
    at = 0
    while at < len(content):
        if at + 4 > len(content):
            raise _cut_short(section)
        form, attribute, size = struct.unpack_from("<BBH", content, at)
        at += 4
        if form != _SIZED:
            continue
        if at + size > len(content):
            raise _cut_short(section)
        yield attribute, content[at : at + size]
        at += size


def _cut_short(section: Section | None) -> BundleError:
    name = section.name if section else ""
    return BundleError("a cubin is not whole", found=f"{name} is cut short", wanted="whole records")
