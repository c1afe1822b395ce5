"""Putting a bundle into service, on a driver that only says which GPU there is."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from bundle_builders import write_bundle
from command_line import ROOT, TINY, python
from recorder import Recorder
from signature_builders import signature
from spec_builders import write_spec

from ssd_aot.bundle.store import Bundle
from ssd_aot.errors import BundleError, MismatchError, SsdAotError, UsageError
from ssd_aot.layouts import FormRule
from ssd_aot.operation import launches
from ssd_aot.ops import execution
from ssd_aot.ops.execution import executing
from ssd_aot.plan import make_plan
from ssd_aot.problems import make_problem
from ssd_aot.runtime import driver, loading
from ssd_aot.runtime.missing import missing_launch
from ssd_aot.spec import load_spec
from ssd_aot.targets import target

GPUS = {
    "H200": driver.Device(0, "NVIDIA H200", (9, 0)),
    "GH200": driver.Device(0, "NVIDIA GH200 480GB", (9, 0)),
    "B300": driver.Device(0, "NVIDIA B300 SXM6 AC", (10, 3)),
    "L40S": driver.Device(0, "NVIDIA L40S", (8, 9)),
}


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, "H200")


def use(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(driver, "device", lambda index: GPUS[name])
    monkeypatch.setattr(execution, "_in_service", None)


def load(path: Path, **options: object) -> loading.LoadedBundle:
    loaded = loading.load(path, devices=[0], **options)  # type: ignore[arg-type]
    assert isinstance(loaded, loading.LoadedBundle)
    return loaded


def refusal(path: Path, **options: object) -> SsdAotError:
    with pytest.raises(SsdAotError) as caught:
        loading.load(path, devices=[0], **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no bundle is loaded"):
        execution.current_executor()
    return caught.value


@pytest.mark.parametrize(("name", "serves"), [("H200", "h200"), ("B300", "b300")])
def test_a_device_is_served_by_its_own_target(
    name: str, serves: str, three_targets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, name)

    loaded = load(three_targets)

    assert loaded.targets == {0: serves}
    assert execution.current_executor() is loaded


def test_another_model_of_the_architecture_is_served_unless_strict(
    three_targets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, "GH200")

    assert "borrowed" in refusal(three_targets, strict=True).what
    assert load(three_targets).targets == {0: "h200"}


def test_another_architecture_is_refused_with_both(
    three_targets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C28."""
    use(monkeypatch, "L40S")

    error = refusal(three_targets)

    assert isinstance(error, MismatchError)
    assert "8.9" in error.found
    assert "b300 (10.3)" in error.wanted


def test_an_incomplete_bundle_is_refused_by_the_name_of_what_is_missing(
    three_targets: Path, tmp_path: Path
) -> None:
    """C24: the message names the missing launch."""
    whole = Bundle.open(three_targets)
    objects = {e.object.path: whole.read_object(e) for e in whole.manifest.variants}
    manifest = replace(whole.manifest, missing=("scan[HEADDIM=16](…) on h200",))
    write_bundle(tmp_path / "b", manifest, objects)

    error = refusal(tmp_path / "b")

    assert "incomplete" in error.what
    assert "scan[HEADDIM=16]" in error.found
    assert "allow_incomplete=True" in error.mend
    assert load(tmp_path / "b", allow_incomplete=True).targets == {0: "h200"}


@pytest.mark.parametrize("damage", ["flip", "remove", "add", "mode"])
def test_a_damaged_bundle_is_refused(damage: str, bundle_copy: Path) -> None:
    """C22."""
    file = next((bundle_copy / "objects").iterdir())
    if damage == "flip":
        file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    elif damage == "remove":
        file.unlink()
    elif damage == "add":
        file.with_name("extra.so").touch()
    else:
        bundle_copy.chmod(0o777)

    error = refusal(bundle_copy)

    assert isinstance(error, BundleError)
    named = {"add": "objects/extra.so", "mode": "writable by everyone"}
    assert named.get(damage, f"objects/{file.name}") in error.found


def test_a_read_only_bundle_elsewhere_is_served(three_targets: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(three_targets, tmp_path / "elsewhere"))
    for place in (moved, *moved.rglob("*")):
        place.chmod(place.stat().st_mode & ~0o222)

    assert load(moved).targets == {0: "h200"}

    for place in (moved, *moved.rglob("*")):
        place.chmod(0o755)


def test_what_was_asked_for_must_be_there(three_targets: Path) -> None:
    assert refusal(three_targets, digest="0" * 64).wanted == "0" * 64
    assert refusal(three_targets, models=["large"]).wanted == "tiny"
    assert refusal(three_targets, tp=2).wanted == "1"


def test_another_launch_interface_is_refused(three_targets: Path, tmp_path: Path) -> None:
    whole = Bundle.open(three_targets)
    objects = {e.object.path: whole.read_object(e) for e in whole.manifest.variants}
    write_bundle(tmp_path / "b", replace(whole.manifest, launch_abi="0" * 64), objects)

    assert "launch interface" in refusal(tmp_path / "b").what


def test_a_missing_launch_names_the_spec_that_covers_it(
    three_targets: Path, tmp_path: Path
) -> None:
    wanted = signature(
        nheads=8, ngroups=2, dtype="fp16", dt_dtype="fp32", param_dtype="fp32", state_dtype="bf16",
        D="headdim", z=True, dt_softplus=False, layout="unaligned",
    )  # fmt: skip
    with executing(recorder := Recorder()):
        make_problem(wanted, [100], device="meta", decode_tokens=1).run()
    layout = recorder.layouts[0]
    manifest = Bundle.open(three_targets).manifest
    launch = launches(layout, "walk")[-1]

    error = missing_launch(manifest, "h200", layout, launch)

    assert error.exit_code == 1
    assert "HEADDIM=16 (wanted 64)" in error.found
    axes = yaml.safe_load("{" + error.mend.partition("under matrix: {")[2])
    geometry = "{nheads: 8, headdim: 64, dstate: 128, ngroups: 2}"
    matrix = yaml.safe_dump(axes, default_flow_style=True)
    assert "headdim: 64, dstate: 128, nheads: 8, ngroups: 2" in error.mend
    spec = write_spec(tmp_path, f"version: 1\nmodels:\n  m: {geometry}\nmatrix: {matrix}")
    plan = make_plan(load_spec([spec]), [target("h200")])
    covered = {planned.launch for planned in plan.launches}
    form = FormRule.for_gpu(132).choose(layout, recorder.counts[0])
    assert covered >= set(launches(layout, form))


SERVING = """
import sys
sys.modules["triton"] = None
import ssd_aot, ssd_aot.ops, ssd_aot.runtime.loading
ssd_aot.load
print(*sorted(name for name in sys.modules if name.startswith("ssd_aot.")))
"""
BUILD_TIME = (
    "axes", "build_cache", "building", "candidates", "checking", "cli", "compiling", "kernels",
    "matrix", "models", "plan", "problems", "records", "sources", "spec", "spec_reading",
    "tracing", "triton_compat", "tuning", "workers",
)  # fmt: skip


def test_serving_imports_neither_triton_nor_anything_of_build_time(tmp_path: Path) -> None:
    ended = python("-c", SERVING, cwd=tmp_path)

    assert ended.returncode == 0, ended.stderr
    imported = {name.split(".")[1] for name in ended.stdout.split()}
    assert {"ops", "runtime", "bundle", "operation"} <= imported
    assert not imported & set(BUILD_TIME)
    assert not {"click", "yaml"} & imported
    assert (ROOT / "ssd_aot" / "runtime").is_dir()


def test_the_tiny_spec_serves_here(three_targets: Path) -> None:
    """What the fixture was built from is what its manifest says."""
    assert (three_targets.parent / "tiny.yaml").read_text() == TINY
    assert [s["model"] for _, s in Bundle.open(three_targets).manifest.signatures] == ["tiny"]
