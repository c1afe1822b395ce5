"""The specs that come with the package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from spec_builders import SMALL, write_spec

from ssd_aot.errors import SpecError
from ssd_aot.signatures import expand
from ssd_aot.spec import load_spec, resolve_spec, shipped_spec, shipped_specs

ROOT = Path(__file__).parent.parent


def test_a_shipped_name_and_a_path_both_name_a_spec(tmp_path: Path) -> None:
    path = write_spec(tmp_path, SMALL)

    assert resolve_spec("default") == shipped_spec("default")
    assert resolve_spec(str(path)) == path


def test_an_unknown_spec_gets_the_nearest_names() -> None:
    with pytest.raises(SpecError) as caught:
        resolve_spec("nemotron-3-super")

    assert caught.value.found == "nemotron-3-super"
    assert caught.value.mend.startswith("write nemotron-3-super-120b")


@pytest.mark.parametrize("name", shipped_specs())
def test_every_shipped_spec_loads_and_states_its_origin(name: str) -> None:
    spec = load_spec([shipped_spec(name)])

    assert expand(spec)
    assert shipped_spec(name).read_text(encoding="utf-8").startswith("# ")
    for model in spec.models:
        assert model.tp == model.divisions()


def test_the_default_spec_has_every_geometry_that_is_shipped_once() -> None:
    def geometries_of(name: str) -> list[tuple[object, ...]]:
        return [
            (*model.shape.values(), size, model.tp)
            for model in load_spec([shipped_spec(name)]).models
            for size in model.chunk_size
        ]

    families = [name for name in shipped_specs() if name != "default"]
    default = geometries_of("default")
    assert set(default) == {entry for name in families for entry in geometries_of(name)}
    assert len(default) == len(set(default))


def test_the_wheel_carries_the_shipped_specs(tmp_path: Path) -> None:
    # Built from a copy: a build writes beside the sources.
    source, site = tmp_path / "source", tmp_path / "site"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "ssd_aot", source / "ssd_aot", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", source)
    for name in ("README.md", "LICENSE"):
        (source / name).touch()
    build = ["-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run([sys.executable, *build, str(source)], check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    install = ["-m", "pip", "install", "--no-deps", "--no-index", "--target", str(site)]
    subprocess.run([sys.executable, *install, str(wheel)], check=True, capture_output=True)

    program = "from ssd_aot import spec; print(*spec.shipped_specs(), spec.shipped_spec('default'))"
    answer = subprocess.run(
        [sys.executable, "-P", "-c", program],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(site)}, check=True,
        capture_output=True, text=True,
    ).stdout.split()  # fmt: skip

    assert tuple(answer[:-1]) == shipped_specs()
    assert Path(answer[-1]) == site / "ssd_aot" / "specs" / "default.yaml"
