"""Unpacking: the bundle as it was packed, or nothing at all, whoever wrote the archive."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from archive_builders import (
    END,
    archive,
    joined,
    member,
    parts,
    snapshot,
)
from bundle_builders import write_bundle, write_small_bundle
from command_line import command, ssd_aot

from ssd_aot.archive.reading import read_bundle
from ssd_aot.archive.unpacking import Unpacked, unpack_bundle
from ssd_aot.bundle.store import Bundle
from ssd_aot.errors import BundleError, HostError, MismatchError, SsdAotError, UsageError


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The archive of a small bundle."""
    return archive(write_small_bundle(tmp_path_factory.mktemp("packed") / "b"))


def unpack(data: bytes, place: Path, digest: str | None = None) -> Unpacked:
    return unpack_bundle("-", str(place), io.BytesIO(data), digest)


def test_what_was_packed_comes_back_as_it_was(tmp_path: Path) -> None:
    bundle = write_small_bundle(tmp_path / "b")

    unpacked = unpack(archive(bundle), tmp_path / "u")

    assert snapshot(tmp_path / "u") == snapshot(tmp_path / "b")
    assert unpacked.digest == bundle.digest
    assert (unpacked.files, unpacked.size_bytes) == (5, sum(f[2] for f in bundle.manifest.files))
    assert Bundle.open(tmp_path / "u").check_files() == []


def test_a_bundle_there_is_replaced_and_nothing_else_is(tmp_path: Path, packed: bytes) -> None:
    write_small_bundle(tmp_path / "old", launch_abi="2" * 64)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("kept")

    assert unpack(packed, tmp_path / "old").digest == Bundle.open(tmp_path / "old").digest
    with pytest.raises(UsageError):
        unpack(packed, tmp_path / "mine")

    assert (tmp_path / "mine" / "file").read_text() == "kept"


def test_an_archive_that_ends_early_says_where(tmp_path: Path, packed: bytes) -> None:
    """Cut at every block, and inside one."""
    for size in [*range(0, len(packed), 512), 100, len(packed) - 1]:
        with pytest.raises(BundleError) as caught:
            unpack(packed[:size], tmp_path / "b")
        assert "ends too early" in caught.value.what
        assert "bytes of " in caught.value.found

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "tail", [b"\0", b"x", bytes(10240), b"a second archive"], ids=["NUL", "x", "blocks", "archive"]
)
def test_nothing_may_follow_the_end(tail: bytes, tmp_path: Path, packed: bytes) -> None:
    behind = packed if tail == b"a second archive" else tail

    with pytest.raises(BundleError, match="something follows the end"):
        unpack(packed + behind, tmp_path / "b")

    assert list(tmp_path.iterdir()) == []


OTHER_FORMATS = {
    "nothing": (b"", "0 bytes of the first header"),
    "zeros": (END, "the end of the archive"),
    "text": (b"hello" * 200, "bytes that are no tar header"),
    "gzip": (gzip.compress(b"x" * 9999, 0), "gzip"),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(512), "zstd"),
    "xz": (b"\xfd7zXZ\x00" + bytes(512), "xz"),
    "zip": (b"PK\x03\x04" + bytes(512), "bytes that are no tar header"),
    "another tar": (joined([member("README.md", b"x")]), "a file 'README.md'"),
    "a manifest of others": (joined([member("manifest.json", b"{}")]), "a field is missing"),
}


@pytest.mark.parametrize("case", OTHER_FORMATS)
def test_what_is_no_archive_of_a_bundle_is_told_as_what_it_is(case: str, tmp_path: Path) -> None:
    data, says = OTHER_FORMATS[case]

    with pytest.raises(BundleError) as caught:
        unpack(data, tmp_path / "b")

    assert says in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_another_bundle_than_the_pinned_one_is_refused_before_its_files_are_read(
    tmp_path: Path, packed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = write_small_bundle(tmp_path / "own").digest
    source = io.BytesIO(packed)

    with pytest.raises(MismatchError) as caught:
        unpack_bundle("-", str(tmp_path / "b"), source, "0" * 64)

    assert (caught.value.found, caught.value.wanted) == (own, "0" * 64)
    assert source.tell() == packed.index(b"manifest.json.sha256")
    monkeypatch.setenv("SSD_AOT_DIGEST", "0" * 64)
    with pytest.raises(MismatchError):
        unpack(packed, tmp_path / "b")
    with pytest.raises(UsageError):
        unpack(packed, tmp_path / "b", own)
    monkeypatch.setenv("SSD_AOT_DIGEST", own)
    assert unpack(packed, tmp_path / "b", own).digest == own


def test_a_manifest_in_another_form_is_refused(tmp_path: Path, packed: bytes) -> None:
    """The digest would be another for the same bundle."""
    written = parts(packed)
    spaced = written[0].data.replace(b",", b", ", 1)
    written[0] = member("manifest.json", spaced)

    with pytest.raises(BundleError, match="canonical form"):
        unpack(joined(written), tmp_path / "b")


def test_a_full_disk_leaves_nothing(
    tmp_path: Path, packed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(HostError) as caught:
        unpack(packed, tmp_path / "b")

    assert caught.value.exit_code == 3
    assert list(tmp_path.iterdir()) == []


def test_long_paths_come_back(tmp_path: Path) -> None:
    """Their headers are extended ones, which are computed like the others."""
    bundle = write_small_bundle(tmp_path / "b")
    name = "triton/" + "k" * 200 + "/" + "n" * 150 + ".json"
    contents = {path: (bundle.path / path).read_bytes() for path, _, _ in bundle.manifest.files}
    contents[name] = b"{}"
    files = [(p, hashlib.sha256(d).hexdigest(), len(d)) for p, d in sorted(contents.items())]
    long = write_bundle(tmp_path / "long", replace(bundle.manifest, files=tuple(files)), contents)

    unpack(archive(long), tmp_path / "u")

    assert snapshot(tmp_path / "u") == snapshot(tmp_path / "long")


def test_the_command_names_the_folder_after_the_archive(tmp_path: Path, packed: bytes) -> None:
    (tmp_path / "h200.tar").write_bytes(packed)

    result = ssd_aot("unpack", tmp_path / "h200.tar", "--json")

    told = json.loads(result.stdout)
    assert told["bundle"] == str(tmp_path / "h200")
    assert told["digest"] == Bundle.open(tmp_path / "h200").digest
    assert ssd_aot("unpack", tmp_path / "h200.tar").stdout.endswith(f"digest {told['digest']}\n")


WRONG = {
    "no folder for standard input": (["-"], 2, "--out"),
    "no folder for another name": (["bundle.archive"], 2, "--out"),
    "an empty folder's name": (["b.tar", "--out", ""], 2, "not a path"),
    "no such file": (["nothing.tar"], 1, "No such file"),
    "a folder": ([".", "--out", "b"], 1, "no OCI image layout"),
    "a digest that is none": (["b.tar", "--digest", "latest"], 2, "not a bundle's digest"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_usage_is_told(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, code, says = WRONG[case]
    monkeypatch.chdir(tmp_path)

    result = ssd_aot("unpack", *arguments)

    assert (result.exit_code, result.stdout) == (code, "")
    assert says in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_archive_goes_through_a_pipe(tmp_path: Path) -> None:
    bundle = write_small_bundle(tmp_path / "b")

    packing = subprocess.run(
        command("pack", bundle.path, "--out", "-"), capture_output=True, check=True
    )
    subprocess.run(
        command("unpack", "-", "--out", tmp_path / "u"), input=packing.stdout, check=True
    )

    assert packing.stdout == archive(bundle)
    assert bundle.digest.encode() in packing.stderr
    assert snapshot(tmp_path / "u") == snapshot(tmp_path / "b")


def test_every_refusal_is_an_error_with_its_mend(packed: bytes) -> None:
    with pytest.raises(SsdAotError) as caught:
        read_bundle(io.BytesIO(packed[:-1]).read, "here")

    assert all((caught.value.found, caught.value.wanted, caught.value.mend))
