"""What a cubin says about itself in its ELF header.

Numbers: ELF-64 object file format for the header's layout; EM_CUDA is 190 in the ELF registry.
Where `e_flags` keeps the architecture was read off cubins that ptxas 12.8 (ABI 7 up to sm_90, ABI 8
from sm_100) and ptxas 13.1 (ABI 8) made.
"""

from __future__ import annotations

import re
import struct

from ssd_aot.errors import BundleError

EM_CUDA = 190
_HEADER_BYTES = 64
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
