"""Each code object against what the manifest says of it, in bundles whose checksums all agree."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from bundle_builders import H100, launch, manifest, signature, variant, write_bundle
from command_line import ssd_aot
from cubin_builders import fake_cubin
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd_aot.bundle.cubin import kernels_in
from ssd_aot.bundle.manifest import VariantEntry
from ssd_aot.bundle.store import Bundle
from ssd_aot.bundle.writer import BundleWriter
from ssd_aot.errors import BundleError
from ssd_aot.verification.code_agreement import code_findings
from ssd_aot.verification.findings import Finding


def sealed(folder: Path, data: bytes, **told: Any) -> Bundle:
    """A bundle of one variant with that code, and with what is told of it."""
    one = signature()
    entry = variant(data, signatures=[one.id], **told)
    return write_bundle(folder / "b", manifest([entry], [one]), {entry.object.path: data})


def failures(bundle: Bundle) -> list[Finding]:
    return [finding for finding in code_findings(bundle) if finding.status == "failed"]


def test_code_that_is_as_told_is_counted(tmp_path: Path) -> None:
    findings = list(code_findings(sealed(tmp_path, fake_cubin(90))))

    assert [(f.status, f.check) for f in findings] == [("ok", "architecture"), ("ok", "code")]
    assert "1 of 1 code objects" in findings[1].what


WHOLE = fake_cubin(90)
TYPES = (("x", "*bf16"), ("dt", "*fp32"), ("seqlen", "i32"))

# The code; what the manifest tells; the failure, what it found and what it wanted.
DISAGREEMENTS: dict[str, tuple[bytes, dict[str, Any], str, str, str]] = {
    "another kernel's code": (
        fake_cubin(90, function="decay"), {}, "no kernel of the manifest's name", "decay",
        "chunk_scan",
    ),
    "a name in other case": (WHOLE, {"function": "Chunk_scan"}, "no kernel", "chunk_scan",
                             "Chunk_scan"),
    "zeroed code": (
        fake_cubin(90, bytes(160)), {}, "a gap in its code", "an instruction that is all zero",
        "none",
    ),
    "other registers": (fake_cubin(90, registers=96), {}, "registers a thread", "96", "128"),
    "other threads": (fake_cubin(90, threads=256), {}, "threads a block", "256", "128"),
    "one parameter fewer": (
        fake_cubin(90, parameters=("*bf16", "i32")), {}, "parameters than the manifest has",
        "4, of 8 4 8 8 bytes", "5, of 8 8 4 8 8 bytes",
    ),
    "parameters in another order": (
        fake_cubin(90, parameters=("i32", "*bf16", "*bf16")), {},
        "parameters than the manifest has", "5, of 4 8 8 8 8 bytes", "5, of 8 8 4 8 8 bytes",
    ),
    "a type that the launch does not have": (
        WHOLE, {"parameters": TYPES}, "parameters than the launch has", "dt *fp32", "dt *bf16",
    ),
    "an argument of the launch left out": (
        fake_cubin(90, parameters=("*bf16", "i32")),
        {"parameters": (("x", "*bf16"), ("seqlen", "i32"))},
        "parameters than the launch has", "dt left out", "dt *bf16",
    ),
    "more shared memory than the target allows": (
        WHOLE, {"shared_bytes": H100.shared_bytes_optin + 1}, "more shared memory",
        "232449 bytes", "at most 232448 bytes for h100",
    ),
    "a file cut short": (
        WHOLE[:-64], {}, "is a cubin is not whole", "outside", "a whole ELF file",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", DISAGREEMENTS)
def test_code_that_is_not_as_told_fails_with_both(case: str, tmp_path: Path) -> None:
    data, told, what, found, wanted = DISAGREEMENTS[case]

    (finding,) = failures(sealed(tmp_path, data, **told))

    assert finding.check == "code"
    assert what in finding.what
    assert found in finding.found
    assert finding.wanted == wanted
    assert finding.mend


def test_code_that_leaves_the_number_of_threads_open_agrees(tmp_path: Path) -> None:
    assert failures(sealed(tmp_path, fake_cubin(90, threads=0))) == []


def test_an_object_that_is_told_of_in_two_ways_fails(tmp_path: Path) -> None:
    one = signature()
    first = variant(WHOLE, signatures=[one.id])
    other = variant(WHOLE, launch=launch(HEADDIM=128), signatures=[one.id], shared_bytes=64)
    made = manifest([first, other], [one])

    (finding,) = failures(write_bundle(tmp_path / "b", made, {first.object.path: WHOLE}))

    assert "told of in two ways" in finding.what
    assert "shared_bytes" in finding.found


def test_real_code_agrees(three_targets: Path) -> None:
    assert failures(Bundle.open(three_targets)) == []


def resealed(
    whole: Path, folder: Path, change: Callable[[VariantEntry, bytes], tuple[VariantEntry, bytes]]
) -> Bundle:
    """A bundle with every variant changed, its manifest and its checksum made to fit."""
    bundle = Bundle.open(whole)
    writer = BundleWriter(folder / "resealed")
    entries = []
    for entry in bundle.manifest.variants:
        changed, data = change(entry, bundle.read_object(entry))
        path = writer.add_object(data)
        sha256 = Path(path).stem
        code = dataclasses.replace(changed.object, sha256=sha256, size_bytes=len(data))
        entries.append(dataclasses.replace(changed, object=code))
    made = dataclasses.replace(bundle.manifest, variants=tuple(entries), files=writer.files)
    writer.commit(made)
    return Bundle.open(folder / "resealed")


def with_code_of(bundle: Path, target: str, kernel: str) -> list[tuple[VariantEntry, bytes]]:
    opened = Bundle.open(bundle)
    return [
        (entry, opened.read_object(entry))
        for entry in opened.manifest.variants
        if (entry.target, entry.launch.kernel) == (target, kernel)
    ]


@pytest.mark.parametrize("target", ["h200", "b200"])
def test_swapped_objects_of_one_kernel_are_found_by_their_parameters(
    target: str, three_targets: Path, tmp_path: Path
) -> None:
    scans = with_code_of(three_targets, target, "scan")
    codes = {entry.object.parameters: data for entry, data in scans}
    assert len(codes) > 1, "the scan runs with final states and without"
    swapped = dict(zip(codes, reversed(codes.values()), strict=True))

    def swap(entry: VariantEntry, data: bytes) -> tuple[VariantEntry, bytes]:
        mine = (entry.target, entry.launch.kernel) == (target, "scan")
        return entry, swapped[entry.object.parameters] if mine else data

    result = ssd_aot("verify", resealed(three_targets, tmp_path, swap).path)

    assert result.exit_code == 1
    assert "takes other parameters" in " ".join(result.stdout.split())


def without_code(data: bytes) -> bytes:
    (facts,) = kernels_in(data).values()
    return data.replace(facts.code, bytes(len(facts.code)))


def without_one_instruction(data: bytes) -> bytes:
    (facts,) = kernels_in(data).values()
    at = data.index(facts.code) + 32
    return data[:at] + bytes(16) + data[at + 16 :]


@pytest.mark.parametrize("damage", [without_code, without_one_instruction])
def test_code_that_was_zeroed_in_a_resealed_bundle_is_found(
    damage: Callable[[bytes], bytes], three_targets: Path, tmp_path: Path
) -> None:
    bundle = resealed(three_targets, tmp_path, lambda entry, data: (entry, damage(data)))

    found = failures(bundle)

    assert len(found) == len({(e.object.sha256, e.target) for e in bundle.manifest.variants})
    assert all("a gap in its code" in finding.what for finding in found)


@cache
def real_cubins(bundle: Path) -> Sequence[bytes]:
    return [data for name in ("h200", "b200") for _, data in with_code_of(bundle, name, "decay")]


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_any_damage_to_a_cubin_is_a_bundle_error_or_is_read(
    data: st.DataObject, three_targets: Path
) -> None:
    cubin = bytearray(data.draw(st.sampled_from(real_cubins(three_targets))))
    (sections_at,) = (int.from_bytes(cubin[40:48], "little"),)
    places = st.integers(0, 1200) | st.integers(sections_at, len(cubin) - 1)
    for place in data.draw(st.lists(places, min_size=1, max_size=8)):
        cubin[place] = data.draw(st.sampled_from([0, 1, 4, 0x7F, 0xFF]))
    shown = cubin[: data.draw(st.integers(0, len(cubin)))] if data.draw(st.booleans()) else cubin

    try:
        kernels = kernels_in(bytes(shown))
    except BundleError as error:
        assert error.found
    else:
        assert all(len(facts.code) <= len(cubin) for facts in kernels.values())
