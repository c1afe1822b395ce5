"""The architecture that a cubin's own header tells."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import triton
from cubin_builders import fake_cubin

from ssd_aot.bundle.elf import cubin_architecture, same_architecture
from ssd_aot.errors import BundleError

ASSEMBLERS = Path(triton.__file__).parent / "backends/nvidia/bin"


def assemble(folder: Path, assembler: str, arch: str, ptx_version: str) -> bytes:
    source, cubin = folder / "k.ptx", folder / "k.cubin"
    head = f".version {ptx_version}\n.target {arch}\n.address_size 64\n"
    source.write_text(head + ".visible .entry k() { ret; }\n")
    command = [str(ASSEMBLERS / assembler), f"-arch={arch}", str(source), "-o", str(cubin)]
    subprocess.run(command, check=True, capture_output=True)
    return cubin.read_bytes()


@pytest.mark.parametrize(
    ("assembler", "arch", "ptx_version"),
    [
        ("ptxas", "sm_80", "8.0"),
        ("ptxas", "sm_89", "8.0"),
        ("ptxas", "sm_90a", "8.0"),
        ("ptxas-blackwell", "sm_80", "8.0"),
        ("ptxas-blackwell", "sm_90a", "8.0"),
        ("ptxas-blackwell", "sm_100a", "8.8"),
        ("ptxas-blackwell", "sm_103a", "8.8"),
        ("ptxas-blackwell", "sm_120a", "8.8"),
    ],
)
def test_the_architecture_of_what_ptxas_makes_is_read(
    tmp_path: Path, assembler: str, arch: str, ptx_version: str
) -> None:
    if not (ASSEMBLERS / assembler).exists():
        pytest.skip(f"this Triton has no {assembler}")

    found = cubin_architecture(assemble(tmp_path, assembler, arch, ptx_version))

    assert same_architecture(found, arch)


@pytest.mark.parametrize("abi", [7, 8])
@pytest.mark.parametrize(("number", "suffix"), [(80, False), (90, True), (103, True), (121, True)])
def test_both_forms_of_the_header_are_read(abi: int, number: int, suffix: bool) -> None:
    data = fake_cubin(number, abi=abi, suffix=suffix)

    assert cubin_architecture(data) == f"sm_{number}{'a' if suffix else ''}"


@pytest.mark.parametrize(
    ("found", "wanted", "same"),
    [
        ("sm_90", "sm_90a", True),
        ("sm_90a", "sm_90a", True),
        ("sm_100a", "sm_103a", False),
        ("sm_80", "sm_90", False),
    ],
)
def test_architectures_are_compared_by_number(found: str, wanted: str, same: bool) -> None:
    assert same_architecture(found, wanted) is same


CUBIN = fake_cubin(90)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "0 bytes"),
        (CUBIN[:63], "63 bytes"),
        (b"#!/bin/sh\n" + bytes(64), "23 21 2f 62"),
        (CUBIN[:4] + b"\x01" + CUBIN[5:], "ELF class 1"),
        (CUBIN[:18] + b"\x3e\x00" + CUBIN[20:], "ELF machine 62"),
        (CUBIN[:8] + b"\x09" + CUBIN[9:], "ABI 9"),
    ],
)
def test_what_is_no_cubin_is_refused_with_what_it_is(data: bytes, found: str) -> None:
    with pytest.raises(BundleError) as caught:
        cubin_architecture(data)

    assert found in caught.value.found
    assert caught.value.wanted
