"""Reading a bundle: wherever it lies, whoever reads it, and no change to it goes unseen."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from bundle_builders import small_manifest, write_bundle, write_small_bundle
from hypothesis import given, settings
from hypothesis import strategies as st

from ssd_aot.bundle.store import Bundle, Problem
from ssd_aot.bundle.writer import BundleWriter
from ssd_aot.errors import BundleError, UsageError


def files_of(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def refusal(folder: Path) -> str:
    """What opening and checking the bundle says; empty for a whole one."""
    try:
        return "\n".join(map(str, Bundle.open(folder).check_files()))
    except BundleError as error:
        return str(error)


def only_problem(folder: Path) -> Problem:
    (problem,) = Bundle.open(folder).check_files()
    return problem


@pytest.mark.parametrize("use", [Bundle.open, BundleWriter])
@pytest.mark.parametrize("path", ["", "a\0b"])
def test_an_empty_path_is_refused_plainly(use: Callable[[str], object], path: str) -> None:
    with pytest.raises(UsageError, match="not a path"):
        use(path)


def test_a_relative_path_still_means_the_same_after_the_folder_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_small_bundle(Path("b"))
    bundle = Bundle.open("b")
    monkeypatch.chdir("/")

    assert bundle.check_files() == []
    assert b"/" + os.fsencode(tmp_path.name) not in (tmp_path / "b/manifest.json").read_bytes()


def test_a_moved_or_copied_bundle_is_the_same(tmp_path: Path) -> None:
    bundle = write_small_bundle(tmp_path / "b")
    shutil.copytree(bundle.path, tmp_path / "else" / "copy")
    bundle.path.rename(tmp_path / "moved")

    for place in (tmp_path / "else" / "copy", tmp_path / "moved"):
        assert Bundle.open(place).digest == bundle.digest
        assert Bundle.open(place).check_files() == []


def test_what_is_no_bundle_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    for place, missing in ((tmp_path / "none", "none"), (tmp_path, "manifest.json")):
        with pytest.raises(BundleError, match=f"{missing}: no bundle can be read here"):
            Bundle.open(place)


def test_a_code_object_is_checked_as_it_is_read(tmp_path: Path) -> None:
    bundle = write_small_bundle(tmp_path / "b")
    entry = bundle.manifest.variants[0]
    data = bundle.read_object(entry)
    assert hashlib.sha256(data).hexdigest() == entry.object.sha256

    file = bundle.path / entry.object.path
    for wrong in (data[:-1], data + b"\0", bytes([data[0] ^ 1]) + data[1:]):
        file.write_bytes(wrong)
        with pytest.raises(BundleError) as caught:
            bundle.read_object(entry.object)
        assert caught.value.where == str(file)
        assert hashlib.sha256(wrong).hexdigest() in caught.value.found
        assert entry.object.sha256 in caught.value.wanted

    file.unlink()
    with pytest.raises(BundleError, match="cannot be read"):
        bundle.read_object(entry)


def test_reading_needs_neither_torch_nor_triton_nor_home_nor_a_known_user() -> None:
    program = (
        "import os, sys\n"
        "for name in ('torch', 'triton', 'click', 'yaml'): sys.modules[name] = None\n"
        "from ssd_aot.bundle.store import Bundle\n"
        "from ssd_aot.verification.verifying import verify\n"
        # Once before, so that no module is left to import from a folder only root may enter.
        "Bundle.open(sys.argv[1])\n"
        "if os.getuid() == 0: os.setuid(54321)\n"
        "bundle = Bundle.open(sys.argv[1])\n"
        "assert all(bundle.read_object(v) for v in bundle.manifest.variants)\n"
        "assert verify(bundle).passed, str(verify(bundle))\n"
    )
    env = {"PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        bundle = write_small_bundle(Path(folder, "b"))
        places = (bundle.path, *bundle.path.rglob("*"))
        for place in places:
            place.chmod(place.stat().st_mode & ~0o222)

        command = [sys.executable, "-c", program, str(bundle.path)]
        subprocess.run(command, env=env, check=True)

        for place in places:
            place.chmod(0o755)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_bundle(tmp_path_factory.mktemp("whole") / "b").path


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_one_flipped_byte_is_noticed_and_its_file_named(
    whole: Path, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(files_of(whole)))
    content = bytearray((whole / name).read_bytes())
    offset = data.draw(st.integers(0, len(content) - 1))
    content[offset] ^= data.draw(st.integers(1, 255))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(shutil.copytree(whole, Path(folder, "b")))
        (place / name).write_bytes(content)

        assert name in refusal(place)


def test_any_one_deleted_file_is_noticed_with_the_variants_that_need_it(
    whole: Path, tmp_path: Path
) -> None:
    users = Bundle.open(whole).variants_by_path()
    for number, name in enumerate(files_of(whole)):
        place = Path(shutil.copytree(whole, tmp_path / str(number)))
        (place / name).unlink()

        said = refusal(place)

        assert name in said
        assert all(variant in said for variant in users.get(name, ()))


@pytest.mark.parametrize(
    "name",
    [
        "cuda_utils.so", "objects/evil.so", "notes/more.txt", "lock", "objects/tmp.pid_77_x",
        ".nfs000000001", "objects/.x.cubin.swp", "new/folder/file",
    ],
)  # fmt: skip
def test_any_added_file_is_noticed(whole: Path, tmp_path: Path, name: str) -> None:
    place = Path(shutil.copytree(whole, tmp_path / "b"))
    (place / name).parent.mkdir(parents=True, exist_ok=True)
    (place / name).write_bytes(b"")

    problem = only_problem(place)

    assert problem.kind == "unlisted"
    assert name.startswith(problem.path)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda path: path.symlink_to("/dev/null"), "a symbolic link"),
        (os.mkfifo, "a special file"),
        (os.mkdir, "a folder"),
    ],
)
def test_only_a_plain_file_counts_as_one(
    whole: Path, tmp_path: Path, make: Callable[[Path], None], kind: str
) -> None:
    place = Path(shutil.copytree(whole, tmp_path / "b"))
    (place / "notes/origin.txt").unlink()
    make(place / "notes/origin.txt")

    problem = only_problem(place)

    assert (problem.kind, problem.path) == ("not a file", "notes/origin.txt")
    assert problem.found == kind


def test_a_linked_folder_and_an_empty_one_are_noticed(whole: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(whole, tmp_path / "b"))
    (place / "objects").rename(tmp_path / "elsewhere")
    (place / "objects").symlink_to(tmp_path / "elsewhere")
    (place / "empty").mkdir()

    problems = Bundle.open(place).check_files()

    assert ("not a folder", "objects") in {(p.kind, p.path) for p in problems}
    assert ("unlisted", "empty") in {(p.kind, p.path) for p in problems}


@pytest.mark.parametrize("path", [".", "objects", "manifest.json", "notes/origin.txt"])
def test_what_everyone_may_write_is_refused_and_what_the_group_may_is_not(
    whole: Path, tmp_path: Path, path: str
) -> None:
    place = Path(shutil.copytree(whole, tmp_path / "b"))
    mode = stat.S_IMODE((place / path).stat().st_mode)

    (place / path).chmod(mode | 0o020)
    assert refusal(place) == ""

    (place / path).chmod(mode | 0o002)
    problem = only_problem(place)
    assert (problem.kind, problem.path) == ("writable", path)


def test_a_change_after_opening_is_noticed_too(whole: Path, tmp_path: Path) -> None:
    place = Path(shutil.copytree(whole, tmp_path / "b"))
    bundle = Bundle.open(place)
    with open(place / "manifest.json", "ab") as file:
        file.write(b" ")

    assert [p.path for p in bundle.check_files()] == ["manifest.json"]


def test_without_contents_only_names_sizes_and_modes_are_compared(
    whole: Path, tmp_path: Path
) -> None:
    place = Path(shutil.copytree(whole, tmp_path / "b"))
    content = (place / "notes/origin.txt").read_bytes()
    (place / "notes/origin.txt").write_bytes(content[::-1])

    assert Bundle.open(place).check_files(contents=False) == []
    assert only_problem(place).kind == "content"

    (place / "notes/origin.txt").write_bytes(content + b"!")
    (problem,) = Bundle.open(place).check_files(contents=False)
    assert problem.kind == "size"


def test_as_many_code_objects_lie_there_as_the_manifest_lists(whole: Path) -> None:
    entries = Bundle.open(whole).manifest.variants

    assert len(list((whole / "objects").iterdir())) == len({e.object.sha256 for e in entries})


def test_an_incomplete_bundle_opens_and_says_what_is_missing(tmp_path: Path) -> None:
    made, contents = small_manifest()

    bundle = write_bundle(tmp_path / "b", replace(made, missing=("chunk_scan[N=1]",)), contents)

    assert not bundle.manifest.complete
    assert bundle.manifest.missing == ("chunk_scan[N=1]",)
