"""Hostile archives: whoever wrote one, nothing lands outside and nothing half-done."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest
from archive_builders import (
    Change,
    Part,
    archive,
    before,
    changed,
    joined,
    last,
    member,
    parts,
    setting,
    snapshot,
    without_data,
)
from bundle_builders import write_small_bundle
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ssd_aot.archive import members, reading
from ssd_aot.archive.reading import read_bundle
from ssd_aot.archive.unpacking import Unpacked, unpack_bundle
from ssd_aot.bundle.layout import checksum_text
from ssd_aot.errors import BundleError


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The archive of a small bundle."""
    return archive(write_small_bundle(tmp_path_factory.mktemp("packed") / "b"))


def unpack(data: bytes, place: Path) -> Unpacked:
    return unpack_bundle("-", str(place), io.BytesIO(data))


def outside(written: list[Part]) -> None:
    """A folder's place taken by a link to one elsewhere, through which files would be written."""
    folder = next(part for part in written if part.info.name == "objects")
    folder.info.type, folder.info.linkname = tarfile.SYMTYPE, "../outside"


def negative(written: list[Part]) -> None:
    last(written).info.size, last(written).form = -(1 << 40), tarfile.GNU_FORMAT


def twice(written: list[Part]) -> None:
    written.append(last(written))


def dropped(written: list[Part]) -> None:
    written.remove(last(written))


def disordered(written: list[Part]) -> None:
    written[-1], written[-2] = written[-2], written[-1]


def headless(written: list[Part]) -> None:
    written.append(written.pop(0))


def hidden(written: list[Part]) -> None:
    part = last(written)
    part.padding = b"x" * (-len(part.data) % 512)


def rewritten(written: list[Part]) -> None:
    part = last(written)
    part.data = bytes(len(part.data))


def cased(written: list[Part]) -> None:
    part = last(written)
    written.append(member(part.info.name.upper(), part.data))


def renamed(name: str) -> Change:
    """The change that writes one code object under another name, if need be an extended one."""

    def change(written: list[Part]) -> None:
        part = last(written)
        part.info.name, part.form = name.replace("NAME", part.info.name), tarfile.PAX_FORMAT

    return change


def extended(kind: bytes, **records: str) -> Change:
    """The change that puts an extended header in front of one code object."""
    text = b"".join(_record(name, value) for name, value in records.items())
    return before(member("././@PaxHeader", text, type=kind))


def _record(name: str, value: str) -> bytes:
    body = f" {name}={value}\n"
    size = len(body)
    while len(str(size)) + len(body) != size:
        size = len(str(size)) + len(body)
    return f"{size}{body}".encode()


HOSTILE: dict[str, tuple[Change, str]] = {
    "a path upwards": (renamed("../escaped"), "a file '../escaped'"),
    "a path upwards from within": (renamed("objects/../../escaped"), "'objects/../../escaped'"),
    "an absolute path": (renamed("/tmp/escaped"), "a file '/tmp/escaped'"),
    "a path upwards, added": (before(member("../escaped", b"x")), "'../escaped'"),
    "a symbolic link": (
        without_data(type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        "a symbolic link",
    ),
    "a link in a folder's place": (outside, "a symbolic link 'objects' to '../outside'"),
    "a hard link": (without_data(type=tarfile.LNKTYPE, linkname="manifest.json"), "a hard link"),
    "a hard link outside": (
        without_data(type=tarfile.LNKTYPE, linkname="../outside/kept"),
        "a hard link",
    ),
    "a character device": (
        without_data(type=tarfile.CHRTYPE, devmajor=1, devminor=5),
        "a character device",
    ),
    "a block device": (without_data(type=tarfile.BLKTYPE, devmajor=8), "a block device"),
    "a pipe": (without_data(type=tarfile.FIFOTYPE), "a pipe"),
    "a folder in a file's place": (without_data(type=tarfile.DIRTYPE), "a folder"),
    "a contiguous file": (setting(type=tarfile.CONTTYPE), "a contiguous file"),
    "an unknown type": (setting(type=b"Z"), "type b'Z'"),
    "a set-user-id mode": (setting(mode=0o4755), "mode 4755"),
    "a mode for everyone to write": (setting(mode=0o666), "mode 666"),
    "an owner": (setting(uid=1000, gid=1000), "owner 1000:1000"),
    "an owner's name": (setting(uname="root"), "a file 'objects/"),
    "another time": (setting(mtime=0), "a file 'objects/"),
    "a size that is a bomb": (setting(size=1 << 32), f"of {1 << 32} bytes"),
    "a size below nothing": (negative, f"of -{1 << 40} bytes"),
    "the same file twice": (twice, "more than its manifest lists"),
    "a file more": (before(member("objects/evil.so", b"x")), "'objects/evil.so'"),
    "a file less": (dropped, "the end of the archive"),
    "another order": (disordered, "does not hold what its manifest lists"),
    "another content": (rewritten, "was changed"),
    "content in the padding": (hidden, "hidden behind objects/"),
    "the manifest last": (headless, "no archive of a bundle"),
    "a name in capitals": (renamed("OBJECTS/X"), "'OBJECTS/X'"),
    "a second name in capitals": (cased, "more than its manifest lists"),
    "a dot before": (renamed("./NAME"), "'./objects/"),
    "a dot between": (renamed("objects/./x"), "'objects/./x'"),
    "a slash more": (renamed("objects//x"), "'objects//x'"),
    "a slash behind": (renamed("NAME/"), "a file 'objects/"),
    "a backslash": (renamed("objects\\x"), "'objects\\\\x'"),
    "a letter that looks alike": (renamed("оbjects/x"), "an extended header"),
    "a letter in two parts": (renamed("objects/e\u0301"), "an extended header"),
    "a name with NUL": (renamed("objects/x\0/../../escaped"), "'objects/x'"),
    "a name that is long": (renamed("objects/" + "x" * 300), "an extended header"),
    "an extended path": (extended(b"x", path="../../escaped"), "an extended header"),
    "an extended size": (extended(b"x", size=str(1 << 40)), "an extended header"),
    "an extended link": (extended(b"x", linkpath="/etc/passwd"), "an extended header"),
    "a global extended path": (extended(b"g", path="../../escaped"), "a global extended header"),
    "a sparse file in extended headers": (
        extended(b"x", **{"GNU.sparse.major": "1", "GNU.sparse.realsize": str(1 << 40)}),
        "an extended header",
    ),
    "a long name of GNU tar": (
        before(member("././@LongLink", b"../escaped\0", type=tarfile.GNUTYPE_LONGNAME)),
        "a long name",
    ),
    "a long link of GNU tar": (
        before(member("././@LongLink", b"/etc\0", type=tarfile.GNUTYPE_LONGLINK)),
        "a long link name",
    ),
    "a sparse file of GNU tar": (setting(type=tarfile.GNUTYPE_SPARSE), "a sparse file"),
}


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("place", ["new", "old"])
def test_a_hostile_archive_leaves_nothing_outside_and_nothing_half_done(
    case: str, place: str, tmp_path: Path, packed: bytes
) -> None:
    change, says = HOSTILE[case]
    write_small_bundle(tmp_path / "old", launch_abi="2" * 64)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "kept").write_text("kept")
    around = snapshot(tmp_path)

    with pytest.raises(BundleError) as caught:
        unpack(changed(packed, change), tmp_path / place)

    assert says in str(caught.value)
    assert caught.value.where == "standard input"
    assert snapshot(tmp_path) == around
    assert not Path("/tmp/escaped").exists()


def test_the_builder_of_hostile_archives_changes_nothing_by_itself(packed: bytes) -> None:
    assert joined(parts(packed)) == packed


RELISTED = {
    "upwards": (["../escaped"], "a path that no bundle holds"),
    "absolute": (["/escaped"], "a path that no bundle holds"),
    "a backslash": (["..\\escaped"], "a path that no bundle holds"),
    "not ASCII": (["é"], "a path that no bundle holds"),
    "the manifest's own": (["manifest.json"], "a path that no bundle holds"),
    "in the manifest": (["manifest.json/x"], "manifest.json, a file and a folder"),
    "the manifest in capitals": (["MANIFEST.json"], "the same to some systems"),
    "two that differ in case": (["a/File", "a/file"], "a/File, which is the same to some systems"),
    "folders that differ in case": (["A/x", "a/y"], "A, which is the same to some systems"),
    "a file and a folder": (["a", "a/b"], "a, a file and a folder"),
    "a long name": (["x" * 256], "its longest name 256"),
    "a long path": (["/".join(["x" * 99] * 11)], "1099 bytes"),
}


@pytest.mark.parametrize("case", RELISTED)
def test_a_hostile_manifest_with_its_own_digest_is_refused(
    case: str, tmp_path: Path, packed: bytes
) -> None:
    names, says = RELISTED[case]
    written = parts(packed)
    manifest = json.loads(written[0].data)
    for name in names:
        manifest["files"][name] = ["a" * 64, 1]
    around = snapshot(tmp_path)

    with pytest.raises(BundleError) as caught:
        unpack(joined(with_manifest(written, manifest)), tmp_path / "b")

    assert says in str(caught.value)
    assert snapshot(tmp_path) == around


def with_manifest(written: list[Part], manifest: object) -> list[Part]:
    """The archive's parts with another manifest, in its canonical form, and its checksum."""
    body = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    rest = body.replace('"format":1,', "", 1)
    text = f'{{"format":1,{rest[1:]}\n'.encode()
    checksum = checksum_text(hashlib.sha256(text).hexdigest()).encode()
    return [
        member("manifest.json", text),
        member("manifest.json.sha256", checksum),
        *written[2:],
    ]


def test_the_builder_of_manifests_changes_nothing_by_itself(packed: bytes) -> None:
    written = parts(packed)

    assert joined(with_manifest(written, json.loads(written[0].data))) == packed


LIMITS = [
    ("MAX_FILES", 4, "5 files"),
    ("MAX_BYTES", 4_000, "bytes in all"),
    ("MAX_MANIFEST_BYTES", 1_000, "bytes of manifest"),
]


@pytest.mark.parametrize(("limit", "most", "says"), LIMITS)
def test_more_than_an_archive_may_hold_is_refused_before_it_is_read(
    limit: str, most: int, says: str, packed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, limit, most)
    source = io.BytesIO(packed)

    with pytest.raises(BundleError) as caught:
        read_bundle(source.read, "here")

    assert says in caught.value.found
    assert caught.value.wanted == f"at most {most}"
    objects = packed.index(b"objects/\0")
    assert source.tell() < objects


def test_a_manifest_that_says_it_is_huge_is_not_read(
    packed: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_MANIFEST_BYTES", 1_000)
    source = io.BytesIO(packed)

    with pytest.raises(BundleError, match="too large"):
        read_bundle(source.read, "here")

    assert source.tell() == 512


def test_a_size_that_is_a_lie_costs_no_memory(packed: bytes) -> None:
    """The stream is asked for pieces, and ends before a bomb's size is reached."""
    asked = []
    source = io.BytesIO(changed(packed, lambda written: setattr(written[0].info, "size", 60 << 20)))

    def read(size: int) -> bytes:
        asked.append(size)
        return source.read(size)

    with pytest.raises(BundleError, match="ends too early"):
        read_bundle(read, "here")

    assert max(asked) <= 1 << 20


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_byte_of_an_archive_may_be_another(packed: bytes, data: st.DataObject) -> None:
    """Changed, left out or put in: each is refused, and only as an error of ours."""
    place = data.draw(st.integers(0, len(packed) - 1))
    byte = data.draw(st.binary(min_size=1, max_size=1).filter(lambda b: b[0] != packed[place]))
    kind = data.draw(st.sampled_from(["changed", "left out", "put in"]))
    start, end = packed[:place], packed[place:]
    other = {"changed": start + byte + end[1:], "left out": start + end[1:],
             "put in": start + byte + end}[kind]  # fmt: skip

    with pytest.raises(BundleError):
        read_bundle(io.BytesIO(other).read, "here")
