"""Packing: one bundle, one archive, the same bytes wherever and by whomever it is packed."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from archive_builders import archive, snapshot
from bundle_builders import small_manifest, write_bundle, write_small_bundle
from command_line import python, ssd_aot

from ssd_aot.archive import members
from ssd_aot.archive.image import stored
from ssd_aot.archive.members import Member
from ssd_aot.archive.packing import Packed, pack_archive
from ssd_aot.bundle.store import Bundle
from ssd_aot.errors import BundleError, HostError, UsageError


def pack(path: Path, out: Path | None = None) -> Packed:
    return pack_archive(path, None if out is None else str(out), io.BytesIO())


def test_the_archive_lies_beside_the_bundle_under_its_name(tmp_path: Path) -> None:
    bundle = write_small_bundle(tmp_path / "h100+b200")

    packed = pack(bundle.path)

    data = (tmp_path / "h100+b200.tar").read_bytes()
    assert packed.archive == str(tmp_path / "h100+b200.tar")
    assert (packed.size_bytes, packed.digest) == (len(data), bundle.digest)
    assert packed.sha256 == hashlib.sha256(data).hexdigest()
    assert sorted(os.listdir(tmp_path)) == ["h100+b200", "h100+b200.tar"]


def test_the_manifest_is_first_and_every_header_is_fixed(tmp_path: Path) -> None:
    bundle = write_small_bundle(tmp_path / "b")

    with tarfile.open(fileobj=io.BytesIO(archive(bundle))) as opened:
        infos = opened.getmembers()

    listed = sorted(path for path, _, _ in bundle.manifest.files)
    folders = ["notes", "objects"]
    assert [i.name for i in infos if i.isfile()] == [
        "manifest.json",
        "manifest.json.sha256",
        *listed,
    ]
    assert [i.name for i in infos if i.isdir()] == folders
    assert len(infos) == len(listed) + 4
    assert {(i.mode, i.isdir()) for i in infos} == {(0o644, False), (0o755, True)}
    assert {(i.uid, i.gid, i.uname, i.gname, i.mtime) for i in infos} == {(0, 0, "", "", 315532800)}


def test_plain_tar_unpacks_it_too(tmp_path: Path) -> None:
    bundle = write_small_bundle(tmp_path / "b")
    pack(bundle.path)
    (tmp_path / "u").mkdir()

    subprocess.run(["tar", "-xf", tmp_path / "b.tar", "-C", tmp_path / "u"], check=True)

    assert snapshot(tmp_path / "u") == snapshot(bundle.path)


GOLDEN = [
    (
        Member("manifest.json", 1234),
        "d81e7605ea4119d2ba661c51a641121cf85292803c82b3545b78351f4d68c343",
    ),
    (Member("objects", None), "e140bc8a9cf2651543bcb02813124f3bf97e357df15fe77aa0b391f2521c8130"),
    (
        Member("io.triton.cache/ssd-aot/objects/" + "a" * 64 + ".cubin", 1 << 20),
        "21f640a1f19a660ccbc786c787b5f3d1be8d42608e6a4162aa32b1ddad5906fe",
    ),
    (
        Member("triton/" + "k" * 200 + "/" + "n" * 150 + ".json", 7),
        "268eb597cfedf2e9bf03a0d66b8cea59ae97923f171f8bd1705e3495b15f1870",
    ),
]


@pytest.mark.parametrize(("member", "sha256"), GOLDEN, ids=["file", "folder", "two parts", "long"])
def test_a_header_has_these_bytes_in_every_release_of_python(member: Member, sha256: str) -> None:
    assert hashlib.sha256(member.header).hexdigest() == sha256


@pytest.mark.parametrize(
    ("size", "blocks"), [(0, 0), (1, 1), (65_535, 1), (65_536, 2), (200_000, 4)]
)
def test_a_layer_is_gzip_without_compression(size: int, blocks: int) -> None:
    data = bytes(range(256)) * 800

    written = b"".join(stored(data[:size]))

    assert gzip.decompress(written) == data[:size]
    assert len(written) == 10 + size + 5 * (blocks + 1) + 8
    assert written[:10] == b"\x1f\x8b\x08\0\0\0\0\0\0\xff"


ELSEWHERE = """
import io, os, shutil, sys, tempfile
from pathlib import Path
from ssd_aot.archive.image import pack_image
from ssd_aot.archive.packing import pack_archive

def digests():
    folder = tempfile.mkdtemp()
    try:
        os.chdir(folder)
        packed = pack_archive(sys.argv[1], "-", io.BytesIO())
        return packed.sha256, pack_image(sys.argv[1], "image").image
    finally:
        shutil.rmtree(folder)

os.umask(int(sys.argv[2], 8))
digests()  # so that no module is left to import from a folder only root may enter
if os.getuid() == 0 and sys.argv[3] != "0":
    os.setgid(int(sys.argv[3]))
    os.setuid(int(sys.argv[3]))
print(*digests(), os.getuid())
"""


def test_another_user_umask_locale_zone_hash_seed_and_file_system_give_the_same_bytes(
    three_targets: Path, tmp_path: Path
) -> None:
    """What two machines may differ in, as far as one machine shows it."""
    memory = Path("/dev/shm")
    other = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=other) as folder:
        os.chmod(folder, 0o755)
        copy = Path(shutil.copytree(three_targets, Path(folder, "copy of it")))
        for place in (copy, *copy.rglob("*")):
            os.utime(place, (1, 1_700_000_000))
            place.chmod(0o555 if place.is_dir() else 0o444)

        here = python("-c", ELSEWHERE, str(three_targets), "022", "0", PYTHONHASHSEED="1")
        there = python(
            "-c", ELSEWHERE, str(copy), "077", "54321",
            PYTHONHASHSEED="2", TZ="Asia/Kathmandu", LC_ALL="POSIX", PYTHONUTF8="0", HOME="/",
            SOURCE_DATE_EPOCH="1700000000", USER="somebody", PYTHONDONTWRITEBYTECODE="1",
        )  # fmt: skip

        for place in (copy, *copy.rglob("*")):
            place.chmod(0o755)
    assert here.returncode == there.returncode == 0, here.stderr + there.stderr
    assert here.stdout.split()[:2] == there.stdout.split()[:2]
    if os.getuid() == 0:
        assert [here.stdout.split()[2], there.stdout.split()[2]] == ["0", "54321"]


def flip(bundle: Path) -> None:
    file = next((bundle / "objects").iterdir())
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")


def remove(bundle: Path) -> None:
    next((bundle / "objects").iterdir()).unlink()


def add(bundle: Path) -> None:
    (bundle / "objects" / "extra.so").touch()


def link(bundle: Path) -> None:
    file = next((bundle / "objects").iterdir())
    file.rename(bundle.parent / "moved")
    file.symlink_to(bundle.parent / "moved")


def open_to_all(bundle: Path) -> None:
    bundle.chmod(0o777)


def change_manifest(bundle: Path) -> None:
    file = bundle / "manifest.json"
    file.write_bytes(file.read_bytes().replace(b"tiny", b"tony"))


DAMAGE = [flip, remove, add, link, open_to_all, change_manifest]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_bundle_that_does_not_verify_is_not_packed(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    bundle = write_small_bundle(tmp_path / "b").path
    damage(bundle)
    around = snapshot(tmp_path)

    archive_ = ssd_aot("pack", bundle)
    image = ssd_aot("pack", bundle, "--oci", tmp_path / "image")

    for result in (archive_, image):
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.startswith("error: ")
        assert "wanted:" in result.stderr
    assert snapshot(tmp_path) == around


def test_an_incomplete_bundle_is_not_packed_and_the_missing_launch_is_named(tmp_path: Path) -> None:
    bundle = write_small_bundle(tmp_path / "b", missing=("scan[HEADDIM=16] on h200",))

    with pytest.raises(BundleError, match=r"scan\[HEADDIM=16\] on h200") as caught:
        pack(bundle.path)

    assert "does not verify" in caught.value.what
    assert os.listdir(tmp_path) == ["b"]


def test_a_file_that_changes_under_way_is_noticed(tmp_path: Path) -> None:
    bundle = write_small_bundle(tmp_path / "b")
    flip(bundle.path)

    with pytest.raises(BundleError, match="changed while it was packed"):
        archive(bundle)


@pytest.mark.parametrize(
    ("limit", "most"), [("MAX_FILES", 4), ("MAX_BYTES", 4_000), ("MAX_MANIFEST_BYTES", 1_000)]
)
def test_what_could_not_be_unpacked_is_not_packed(
    limit: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = write_small_bundle(tmp_path / "b")
    monkeypatch.setattr(members, limit, most)

    with pytest.raises(BundleError, match="too large for an archive"):
        pack(bundle.path)

    assert os.listdir(tmp_path) == ["b"]


def test_names_that_are_one_on_some_file_systems_are_not_packed(tmp_path: Path) -> None:
    made, contents = small_manifest()
    contents |= {"notes/a": b"", "notes/A": b""}
    files = tuple((p, hashlib.sha256(d).hexdigest(), len(d)) for p, d in contents.items())
    bundle = write_bundle(tmp_path / "b", replace(made, files=files), contents)

    with pytest.raises(BundleError, match="in each other's place"):
        pack(bundle.path)


def test_an_archive_is_replaced_and_nothing_else_is(tmp_path: Path) -> None:
    bundle = write_small_bundle(tmp_path / "b")
    place = tmp_path / "place"
    place.touch()
    first = pack(bundle.path, place)
    write_small_bundle(tmp_path / "b", launch_abi="2" * 64)

    assert pack(bundle.path, place).sha256 != first.sha256

    (tmp_path / "mine").write_text("kept")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("mine", "folder", "pipe"):
        with pytest.raises(UsageError, match="not replaced"):
            pack(bundle.path, tmp_path / name)
    assert (tmp_path / "mine").read_text() == "kept"


def test_an_archive_in_the_bundle_would_spoil_it(tmp_path: Path) -> None:
    bundle = write_small_bundle(tmp_path / "b")
    (tmp_path / "link").symlink_to(bundle.path / "objects")

    for place in (bundle.path, bundle.path / "b.tar", tmp_path / "link" / "b.tar"):
        with pytest.raises(UsageError, match="would lie in the bundle"):
            pack(bundle.path, place)

    assert Bundle.open(bundle.path).check_files() == []


def test_what_is_packed_through_a_link_has_the_links_name(tmp_path: Path) -> None:
    bundle = write_small_bundle(tmp_path / "v1")
    (tmp_path / "current").symlink_to("v1")

    assert pack(tmp_path / "current").digest == bundle.digest
    assert sorted(os.listdir(tmp_path)) == ["current", "current.tar", "v1"]


def test_a_full_disk_leaves_the_archive_that_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = write_small_bundle(tmp_path / "b")
    pack(bundle.path)
    around = snapshot(tmp_path)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(HostError) as caught:
        pack(bundle.path)

    assert "No space left" in caught.value.found
    assert snapshot(tmp_path) == around


def test_the_command_prints_the_result_and_nothing_else(tmp_path: Path) -> None:
    bundle = write_small_bundle(tmp_path / "b")

    told = json.loads(ssd_aot("pack", bundle.path, "--json").stdout)

    assert told["digest"] == bundle.digest
    assert told["sha256"] == hashlib.sha256((tmp_path / "b.tar").read_bytes()).hexdigest()
    assert ssd_aot("pack", bundle.path).stdout.splitlines()[1:] == [
        f"sha256 {told['sha256']}",
        f"digest {told['digest']}",
    ]


WRONG = {
    "an archive and an image": (["--out", "a.tar", "--oci", "image"], 2, "both say where"),
    "an archive and JSON on standard output": (["--out", "-", "--json"], 2, "would both be"),
    "an empty name": (["--out", ""], 2, "not a path"),
    "an empty folder's name": (["--oci", ""], 2, "not a path"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_usage_is_told(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options, code, says = WRONG[case]
    write_small_bundle(tmp_path / "b")
    monkeypatch.chdir(tmp_path)

    result = ssd_aot("pack", "b", *options)

    assert (result.exit_code, result.stdout) == (code, "")
    assert says in result.stderr
    assert os.listdir(tmp_path) == ["b"]


def test_what_is_no_bundle_is_not_packed(tmp_path: Path) -> None:
    assert ssd_aot("pack", tmp_path / "nothing").exit_code == 1
    assert list(tmp_path.iterdir()) == []
