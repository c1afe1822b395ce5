"""Writing a bundle: whole or not at all, the same bytes for the same content."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import threading
from pathlib import Path

import pytest
from bundle_builders import small_manifest, write_bundle, write_small_bundle

from ssd_aot.bundle import swapping
from ssd_aot.bundle.store import Bundle
from ssd_aot.bundle.writer import EARLIEST_TIME, BundleWriter
from ssd_aot.errors import BundleError, HostError, UsageError


def test_a_bundle_holds_the_manifests_files_and_nothing_else(tmp_path: Path) -> None:
    made, _ = small_manifest()

    bundle = write_small_bundle(tmp_path / "b")

    listed = [path for path, _, _ in made.files]
    assert sorted(
        p.relative_to(bundle.path).as_posix() for p in bundle.path.rglob("*") if p.is_file()
    ) == sorted([*listed, "manifest.json", "manifest.json.sha256"])
    assert bundle.check_files() == []
    assert bundle.digest == bundle.manifest.digest == made.digest
    assert os.listdir(tmp_path) == ["b"]


def test_the_digest_is_what_sha256sum_says_of_the_manifest(tmp_path: Path) -> None:
    bundle = write_small_bundle(tmp_path / "b")

    subprocess.run(["sha256sum", "-c", "manifest.json.sha256"], cwd=bundle.path, check=True)


def test_modes_and_times_are_fixed(tmp_path: Path) -> None:
    old = os.umask(0o077)
    try:
        bundle = write_small_bundle(tmp_path / "b")
    finally:
        os.umask(old)

    for place in (bundle.path, *bundle.path.rglob("*")):
        status = place.stat()
        assert stat.S_IMODE(status.st_mode) == (0o755 if place.is_dir() else 0o644)
        assert status.st_mtime == EARLIEST_TIME


def test_source_date_epoch_sets_the_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")

    bundle = write_small_bundle(tmp_path / "b")

    assert {p.stat().st_mtime for p in bundle.path.rglob("*")} == {1_700_000_000}


def test_a_senseless_source_date_epoch_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "yesterday")

    with pytest.raises(UsageError, match="SOURCE_DATE_EPOCH"):
        write_small_bundle(tmp_path / "b")


def test_identical_code_objects_are_stored_once(tmp_path: Path) -> None:
    made = BundleWriter(tmp_path / "b")

    assert made.add_object(b"same") == made.add_object(b"same")
    assert len(made.files) == 1


@pytest.mark.parametrize("change", ["unlisted", "not added", "other content"])
def test_files_that_the_manifest_does_not_list_do_not_get_in(tmp_path: Path, change: str) -> None:
    made, contents = small_manifest()
    if change == "unlisted":
        contents["objects/tmp.pid_1234/lock"] = b""
    elif change == "not added":
        del contents["notes/origin.txt"]
    else:
        contents["notes/origin.txt"] = b"else"

    with pytest.raises(BundleError, match="does not list"):
        write_bundle(tmp_path / "b", made, contents)

    assert os.listdir(tmp_path) == []


def test_a_file_cannot_be_added_outside(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no bundle holds"):
        BundleWriter(tmp_path / "b").add_file("../x", b"")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_says_where_and_how_much_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    before = write_small_bundle(tmp_path / "b").digest

    def full(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(HostError) as caught:
            write_small_bundle(tmp_path / "b", launch_abi="2" * 64)

    assert caught.value.exit_code == 3
    assert caught.value.where == str(tmp_path)
    assert int(caught.value.wanted.split()[0]) > 1000
    assert os.listdir(tmp_path) == ["b"]
    assert Bundle.open(tmp_path / "b").digest == before
    assert write_small_bundle(tmp_path / "b", launch_abi="2" * 64).digest != before


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_bundle_is_replaced_and_the_old_one_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    old = write_small_bundle(tmp_path / "b")
    old.path.chmod(0o555)
    if not can_exchange:
        monkeypatch.setattr(swapping, "exchange", lambda one, other: False)

    new = write_small_bundle(tmp_path / "b", launch_abi="2" * 64)

    assert new.digest != old.digest
    assert new.check_files() == []
    assert os.listdir(tmp_path) == ["b"]


def test_without_exchange_the_old_bundle_comes_back_when_the_new_one_cannot_be_placed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = write_small_bundle(tmp_path / "b").digest
    rename = os.rename

    def fail_for_new(source: Path, target: Path) -> None:
        if str(source).endswith(".new"):
            raise OSError(errno.EIO, "broken")
        rename(source, target)

    monkeypatch.setattr(swapping, "exchange", lambda one, other: False)
    monkeypatch.setattr(os, "rename", fail_for_new)
    with pytest.raises(HostError):
        write_small_bundle(tmp_path / "b", launch_abi="2" * 64)

    assert Bundle.open(tmp_path / "b").digest == before
    assert os.listdir(tmp_path) == ["b"]


def test_a_damaged_bundle_is_replaced(tmp_path: Path) -> None:
    broken = write_small_bundle(tmp_path / "b").path
    (broken / "manifest.json").write_bytes((broken / "manifest.json").read_bytes()[:50])

    assert write_small_bundle(tmp_path / "b").check_files() == []


def test_readers_see_one_bundle_or_the_other_while_it_is_replaced(tmp_path: Path) -> None:
    digests = {abi: write_small_bundle(tmp_path / "b", launch_abi=abi).digest for abi in ("1", "2")}
    seen, done = set(), threading.Event()

    def replace_often() -> None:
        for round_ in range(30):
            write_small_bundle(tmp_path / "b", launch_abi=str(1 + round_ % 2))
        done.set()

    thread = threading.Thread(target=replace_often)
    thread.start()
    while not done.is_set():
        seen.add(Bundle.open(tmp_path / "b").digest)
    thread.join()

    assert seen <= set(digests.values())


@pytest.mark.parametrize("content", ["someone's file", '{"name": "an extension"}'])
def test_what_is_no_bundle_is_never_replaced(tmp_path: Path, content: str) -> None:
    place = tmp_path / "mine"
    place.mkdir()
    (place / "manifest.json").write_text(content)

    with pytest.raises(UsageError) as caught:
        BundleWriter(place)

    assert caught.value.exit_code == 2
    assert (place / "manifest.json").read_text() == content


def test_a_file_in_the_bundles_place_is_kept_and_an_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "empty").mkdir()

    with pytest.raises(UsageError):
        BundleWriter(tmp_path / "file")
    assert write_small_bundle(tmp_path / "empty").check_files() == []


def test_a_link_to_a_bundle_stays_a_link(tmp_path: Path) -> None:
    write_small_bundle(tmp_path / "v1")
    (tmp_path / "current").symlink_to("v1")

    new = write_small_bundle(tmp_path / "current", launch_abi="2" * 64)

    assert (tmp_path / "current").is_symlink()
    assert Bundle.open(tmp_path / "v1").digest == new.digest
