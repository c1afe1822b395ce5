"""C23: a bundle on a network file system is read with patience, once a host, and served from a
copy that nobody else could have made."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections import Counter
from pathlib import Path

import filelock
import pytest
from bundle_builders import write_small_bundle
from engine_bundles import EVEN, scan, serving
from forked import forked

import ssd_aot
from ssd_aot.bundle import mounts, store
from ssd_aot.bundle.store import Bundle
from ssd_aot.errors import BundleError, HostError, MismatchError
from ssd_aot.ops import execution
from ssd_aot.runtime import driver, loading, local_copy
from ssd_aot.runtime.accepting import accept

# Which file system


MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 27 0:50 / /mnt/models rw,relatime shared:2 master:3 - nfs4 server:/models rw,vers=4.2
41 40 254:1 / /mnt/models/local rw - xfs /dev/vdb rw
42 27 0:51 / /mnt/with\\040space rw - cifs //server/share rw
43 27 0:52 / /mnt/bucket rw - fuse.gcsfuse bucket rw
44 27 0:53 / /mnt/layers rw - fuse.fuse-overlayfs layers rw
45 27 0:54 / /scratch rw - lustre fs rw
46 27 0:55 / /scratch rw - tmpfs over rw
"""

PLACES = {
    "/opt/kernels": ("ext4", False),
    "/mnt/models": ("nfs4", True),
    "/mnt/models/b": ("nfs4", True),
    "/mnt/models/local/b": ("xfs", False),
    "/mnt/models-too": ("ext4", False),
    "/mnt/with space/b": ("cifs", True),
    "/mnt/bucket/b": ("fuse.gcsfuse", True),
    "/mnt/layers/b": ("fuse.fuse-overlayfs", False),
    "/scratch/b": ("tmpfs", False),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_path_lies_on_what_is_mounted_nearest_above_it(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS)
    monkeypatch.setattr(mounts, "MOUNTS", tmp_path / "mountinfo")

    assert (mounts.file_system_type(place), mounts.on_network(place)) == PLACES[place]


def test_without_the_kernels_list_a_path_is_taken_for_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mounts, "MOUNTS", tmp_path / "none")

    assert mounts.file_system_type("/") == ""
    assert not mounts.on_network("/")


# The copy


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is taken for one on a network; temporary files are local and the test's own."""
    place = tmp_path / "network"
    place.mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(local_copy, "on_network", lambda path: Path(path).is_relative_to(place))
    monkeypatch.setattr(local_copy, "_PAUSES_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.delenv("SSD_AOT_LOCAL", raising=False)
    return place


@pytest.fixture
def bundle(network: Path) -> Bundle:
    return write_small_bundle(network / "b")


def own_folder(tmp_path: Path) -> Path:
    return tmp_path / "tmp" / f"ssd-aot-{os.geteuid()}"


class Stale:
    """Reads of a network file system that fails now and then, or for good."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, network: Path) -> None:
        self.failures: dict[str, int] = {}
        self.code = errno.ESTALE
        self.reads: Counter[str] = Counter()
        self._network, self._read = network, store._read
        monkeypatch.setattr(store, "_read", self)

    def __call__(self, path: str | Path, folder: int | None = None) -> bytes:
        name = Path(path).name
        on_network = Path(path).is_relative_to(self._network) if folder is None else True
        if on_network:
            self.reads[name] += 1
            if self.failures.get(name, 0) > 0:
                self.failures[name] -= 1
                raise OSError(self.code, os.strerror(self.code), str(path))
        return self._read(path, folder)


def test_a_bundle_on_a_local_file_system_is_served_where_it_lies(tmp_path: Path) -> None:
    local = write_small_bundle(tmp_path / "b")

    assert accept(local.path).path == local.path


def test_a_bundle_on_a_network_is_served_from_a_copy_in_a_folder_of_ones_own(
    bundle: Bundle, tmp_path: Path
) -> None:
    copy = accept(bundle.path)

    assert copy.path == own_folder(tmp_path) / bundle.digest
    assert copy.digest == bundle.digest
    assert copy.check_files() == []
    assert stat.S_IMODE(own_folder(tmp_path).stat().st_mode) == 0o700
    assert accept(bundle.path).path == copy.path
    assert accept(copy.path).path == copy.path


def test_a_folder_that_is_named_is_made_and_used_whatever_the_bundle_lies_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = write_small_bundle(tmp_path / "b")
    monkeypatch.setenv("SSD_AOT_LOCAL", str(tmp_path / "deep" / "copies"))

    copy = accept(local.path)

    assert copy.path == tmp_path / "deep" / "copies" / local.digest
    assert stat.S_IMODE((tmp_path / "deep" / "copies").stat().st_mode) == 0o700
    assert accept(copy.path).path == copy.path, "a copy is not copied again"


@pytest.mark.parametrize("code", [errno.ESTALE, errno.EIO])
def test_reads_that_fail_for_a_moment_are_made_again(
    code: int, bundle: Bundle, network: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = Stale(monkeypatch, network)
    stale.code = code
    cubin = bundle.manifest.variants[0].object.path.rpartition("/")[2]
    stale.failures = {"manifest.json": 2, cubin: 3}

    assert accept(bundle.path).check_files() == []
    assert stale.failures == {"manifest.json": 0, cubin: 0}


def test_a_handle_that_stays_stale_is_told_with_the_file_and_leaves_no_copy(
    bundle: Bundle, network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = Stale(monkeypatch, network)
    cubin = bundle.manifest.variants[0].object.path.rpartition("/")[2]
    stale.failures = {cubin: 1000}

    with pytest.raises(BundleError, match="cannot be read") as caught:
        accept(bundle.path)

    assert cubin in caught.value.where
    assert caught.value.found == os.strerror(errno.ESTALE)
    assert [p.name for p in own_folder(tmp_path).iterdir()] == [f"{bundle.digest}.lock"]


def test_what_is_wrong_for_good_is_not_tried_again(
    bundle: Bundle, network: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = Stale(monkeypatch, network)
    monkeypatch.setattr(local_copy, "_PAUSES_S", (3600.0,))
    file = bundle.path / bundle.manifest.variants[0].object.path
    file.unlink()

    with pytest.raises(BundleError, match="cannot be read"):
        accept(bundle.path)
    assert stale.reads[file.name] == 1


@pytest.mark.parametrize("name", ["manifest.json", "notes/origin.txt"])
def test_a_changed_file_is_refused_before_a_copy_is_there(
    name: str, bundle: Bundle, tmp_path: Path
) -> None:
    (bundle.path / name).write_bytes((bundle.path / name).read_bytes()[:-1] + b"!")

    with pytest.raises(BundleError, match="was changed"):
        accept(bundle.path)
    assert not (own_folder(tmp_path) / bundle.digest).exists()


def test_another_bundle_than_the_pinned_one_is_not_copied(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(MismatchError):
        accept(bundle.path, "0" * 64)
    assert not own_folder(tmp_path).exists()


def test_a_copy_that_lost_a_file_is_made_anew(bundle: Bundle) -> None:
    """Cleaners of temporary folders take what was not used for some days."""
    copy = accept(bundle.path)
    (copy.path / bundle.manifest.variants[0].object.path).unlink()

    again = accept(bundle.path)

    assert again.path == copy.path
    assert again.check_files() == []
    assert sorted(p.name for p in copy.path.parent.iterdir()) == [
        bundle.digest,
        f"{bundle.digest}.lock",
    ]


def test_two_bundles_have_two_copies(bundle: Bundle, network: Path, tmp_path: Path) -> None:
    other = write_small_bundle(network / "c", spec_digest="6" * 64)

    assert accept(bundle.path).path != accept(other.path).path


def test_ranks_that_load_at_once_share_one_copy(
    bundle: Bundle, network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file is read once on the host, however many processes start."""
    log, read = tmp_path / "log", Bundle.read_listed

    def slow_and_logged(self: Bundle, path: str) -> bytes:
        with log.open("a") as file:
            file.write(f"{path}\n")
        time.sleep(0.02)
        return read(self, path)

    monkeypatch.setattr(Bundle, "read_listed", slow_and_logged)
    places: list[Path] = []

    def rank() -> Path:
        return accept(bundle.path).path

    ranks = [threading.Thread(target=lambda: places.append(forked(rank))) for _ in range(3)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()

    assert places == [own_folder(tmp_path) / bundle.digest] * 3
    read_files = Counter(log.read_text().split())
    listed = {path for path, _, _ in bundle.manifest.files} | {"manifest.json"}
    assert read_files == dict.fromkeys(listed, 1)


def test_a_process_that_is_stuck_while_it_copies_holds_nobody_up_for_ever(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_copy, "_LOCK_WAIT_S", 0.05)
    own_folder(tmp_path).mkdir(mode=0o700)

    with filelock.FileLock(own_folder(tmp_path) / f"{bundle.digest}.lock"):
        assert forked(lambda: accept(bundle.path).check_files()) == []


# Whom it trusts


def test_a_folder_that_everyone_may_write_to_is_refused(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setenv("SSD_AOT_LOCAL", str(shared))

    with pytest.raises(HostError) as caught:
        accept(bundle.path)

    assert caught.value.where == str(shared)
    assert "writable by everyone" in caught.value.found
    assert list(shared.iterdir()) == []


@pytest.mark.parametrize("whose", ["folder", "copy"])
def test_what_another_user_made_is_not_trusted(
    whose: str, bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lay there before: who made it could change it under the reader."""
    copy = accept(bundle.path).path
    wanted = copy if whose == "copy" else copy.parent
    lstat = os.lstat

    def of_another(path: str | os.PathLike[str], **given: int | None) -> os.stat_result:
        found = lstat(path, **given)
        if Path(path) != wanted:
            return found
        return os.stat_result((*found[:4], os.geteuid() + 1, *found[5:]))

    monkeypatch.setattr(os, "lstat", of_another)

    with pytest.raises(HostError) as caught:
        accept(bundle.path)
    assert caught.value.where == str(wanted)
    assert f"owned by user {os.geteuid() + 1}" in caught.value.found


def test_a_link_in_the_folders_place_is_not_followed(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    own_folder(tmp_path).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(HostError, match="could change what is served"):
        accept(bundle.path)
    assert list((tmp_path / "elsewhere").iterdir()) == []


# Where there is no place


def test_without_a_place_for_a_copy_the_bundle_is_served_from_the_network_and_that_is_said(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))

    with pytest.warns(RuntimeWarning, match="served from there"):
        assert accept(bundle.path).path == bundle.path


def test_a_named_folder_that_cannot_be_made_is_an_error(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SSD_AOT_LOCAL", str(tmp_path / "file" / "copies"))

    with pytest.raises(HostError, match="cannot be copied to this host") as caught:
        accept(bundle.path)
    assert "SSD_AOT_LOCAL" in caught.value.mend


def test_a_temporary_folder_on_the_same_file_system_gains_nothing(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """As in sandboxes whose whole root is served over 9p."""
    monkeypatch.setattr(local_copy, "on_network", lambda path: True)

    assert accept(bundle.path).path == bundle.path
    assert not recwarn.list


# Both kinds of bundles


def test_an_engines_kernels_are_served_from_the_copy_and_children_told_of_the_bundle(
    engine_bundle: Path, tmp_path: Path
) -> None:
    def work() -> None:
        with serving() as (op, here):
            ssd_aot.load(engine_bundle, strict=True)
            scan(op, EVEN)
            assert len(here.loaded) == 7
            (loaded,) = ssd_aot.status()["bundles"]
            assert Path(loaded["path"]).parent == tmp_path / "copies"
            assert os.environ["SSD_AOT_BUNDLE"] == str(engine_bundle)

    forked(work, SSD_AOT_LOCAL=str(tmp_path / "copies"), SSD_AOT_BUNDLE=None)


def test_builtin_kernels_are_read_from_the_copy(
    three_targets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    h200 = driver.Device(0, "NVIDIA H200", (9, 0))
    monkeypatch.setattr(driver, "device", lambda index: h200)
    monkeypatch.setattr(execution, "_in_service", None)
    monkeypatch.setenv("SSD_AOT_LOCAL", str(tmp_path / "copies"))

    loaded = loading.load(three_targets, devices=[0])

    assert isinstance(loaded, loading.LoadedBundle)
    assert loaded.bundle.path == tmp_path / "copies" / loaded.bundle.digest
