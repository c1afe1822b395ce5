"""Tests that need a CUDA GPU. SSD_AOT_TEST_BUNDLE names a bundle of the default spec for it;
without it one is built here."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

GPU = torch.cuda.is_available()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.gpu)
            if not GPU:
                item.add_marker(pytest.mark.skip(reason="no CUDA GPU here"))


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A copy of the bundle in a folder it was not built in, read-only."""
    place = tmp_path_factory.mktemp("moved") / "bundle"
    given = os.environ.get("SSD_AOT_TEST_BUNDLE")
    if given:
        shutil.copytree(given, place)
    else:
        from ssd_aot.building import build
        from ssd_aot.spec import load_spec, shipped_spec
        from ssd_aot.targets import target_for_device

        known = target_for_device(torch.cuda.get_device_name(), torch.cuda.get_device_capability())
        assert known is not None, "this GPU is not among the targets"
        build(load_spec([shipped_spec("default")]), [known], place, jobs=os.cpu_count() or 2)
    for path in (*place.rglob("*"), place):
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield place
    for path in (place, *place.rglob("*")):
        path.chmod(0o755)
