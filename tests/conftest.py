"""Builders shared by the tests live beside this file and are imported by name."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import filelock
import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session", autouse=True)
def no_shipped_records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests choose by the records they make: those that come with the package change."""
    empty = tmp_path_factory.mktemp("no_records")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ssd_aot.tuning.choices.shipped_folder", lambda: empty)
        yield


@pytest.fixture(scope="session")
def three_targets(tmp_path_factory: pytest.TempPathFactory, no_shipped_records: None) -> Path:
    """A bundle of the tiny spec for sm_90, sm_100 and sm_103, as the command line builds it; all
    the session's processes share it and leave it as it is."""
    from command_line import TINY, ssd_aot

    folder = _shared_folder(tmp_path_factory)
    place = folder / "shared" / "h200+b200+b300"
    with filelock.FileLock(folder / "shared.lock"):
        if not place.exists():
            place.parent.mkdir(exist_ok=True)
            spec = place.parent / "tiny.yaml"
            spec.write_text(TINY)
            gpus = [option for name in ("h200", "b200", "b300") for option in ("--gpu", name)]
            result = ssd_aot("build", *gpus, "--spec", spec, "--out", place)
            assert result.exit_code == 0, result.output
    return place


@pytest.fixture(scope="session")
def engine_bundle(tmp_path_factory: pytest.TempPathFactory, no_shipped_records: None) -> Path:
    """A bundle of the fixture engine's kernels for an H200; all the session's processes share it
    and leave it as it is."""
    from engine_bundles import build

    folder = _shared_folder(tmp_path_factory)
    place = folder / "engine" / "h200"
    with filelock.FileLock(folder / "engine.lock"):
        if not place.exists():
            build(place)
    return place


def _shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.getbasetemp()
    return base.parent if base.name.startswith("popen") else base


@pytest.fixture
def bundle_copy(three_targets: Path, tmp_path: Path) -> Path:
    """A copy of `three_targets` that a test may damage."""
    return Path(shutil.copytree(three_targets, tmp_path / "copy"))
