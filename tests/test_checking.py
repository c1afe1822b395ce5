"""`ssd-aot verify` on bundles that were really built: what it refuses, and in which words."""

from __future__ import annotations

import json
import os
import sysconfig
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from bundle_builders import write_small_bundle
from command_line import TINY, python, ssd_aot
from spec_builders import write_spec

from ssd_aot.bundle.choosing import DeviceFacts
from ssd_aot.bundle.store import Bundle
from ssd_aot.bundle.writer import BundleWriter
from ssd_aot.errors import UsageError
from ssd_aot.verification import checking


def cubins(bundle: Path) -> list[Path]:
    return sorted((bundle / "objects").iterdir())


def words(text: str) -> str:
    """The text with line breaks made spaces: reports are wrapped to the terminal's width."""
    return " ".join(text.split())


def test_what_was_built_verifies(three_targets: Path) -> None:
    result = ssd_aot("verify", three_targets)

    assert result.exit_code == 0, result.output
    assert "checked against the launches that the spec needs" in words(result.stdout)
    assert "not checked results" in result.stdout


def test_as_many_cubins_lie_there_as_the_manifest_lists(three_targets: Path) -> None:
    """C32."""
    manifest = Bundle.open(three_targets).manifest

    assert len(cubins(three_targets)) == len({entry.object.sha256 for entry in manifest.variants})
    assert len(manifest.variants) == 24
    assert {entry.object.arch for entry in manifest.variants} == {"sm_90a", "sm_100a", "sm_103a"}


def flip(file: Path) -> Path:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    return file


def remove(file: Path) -> Path:
    file.unlink()
    return file


def add(file: Path) -> Path:
    extra = file.with_name("extra.so")
    extra.write_bytes(b"")
    return extra


@pytest.mark.parametrize("damage", [flip, remove, add])
def test_a_damaged_bundle_fails_and_the_file_is_named(
    damage: Callable[[Path], Path], bundle_copy: Path
) -> None:
    file = damage(cubins(bundle_copy)[0])

    result = ssd_aot("verify", bundle_copy)

    assert result.exit_code == 1
    assert f"objects/{file.name}" in words(result.stdout)
    assert "NOT verified" in words(result.stdout)


@pytest.mark.parametrize("damage", [flip, remove])
def test_a_damaged_manifest_fails_and_is_named(
    damage: Callable[[Path], Path], bundle_copy: Path
) -> None:
    damage(bundle_copy / "manifest.json")

    result = ssd_aot("verify", bundle_copy)

    assert result.exit_code == 1
    assert "manifest.json" in words(result.stdout)


def test_a_signature_that_the_bundle_lacks_fails_by_name(
    three_targets: Path, tmp_path: Path
) -> None:
    wider = write_spec(tmp_path, TINY.replace("matrix: {", "matrix: {state_dtype: [fp32, fp16], "))

    result = ssd_aot("verify", three_targets, "--spec", wider)

    assert result.exit_code == 1
    missing = "tiny/tp1/bf16-bf16-bf16-fp16/c128/init/packed/seqs2..1024"
    assert f"signature {missing} of the spec is not in the bundle" in words(result.stdout)
    assert "a launch of scan is missing for b300, needed by " + missing in words(result.stdout)


def test_a_launch_that_the_bundle_lacks_fails_by_name(three_targets: Path, tmp_path: Path) -> None:
    whole = Bundle.open(three_targets)
    kept = tuple(
        entry
        for entry in whole.manifest.variants
        if (entry.target, entry.launch.kernel) != ("b200", "decay")
    )
    writer = BundleWriter(tmp_path / "partial")
    for entry in kept:
        writer.add_object(whole.read_object(entry))
    writer.commit(replace(whole.manifest, variants=kept, files=writer.files))

    result = ssd_aot("verify", tmp_path / "partial")

    assert result.exit_code == 1
    assert "a launch of decay is missing for b200, needed by tiny/tp1" in words(result.stdout)


def test_the_json_form_is_the_whole_of_stdout(three_targets: Path) -> None:
    result = ssd_aot("verify", three_targets, "--json")

    report = json.loads(result.stdout)
    assert report["passed"]
    assert report["digest"] == Bundle.open(three_targets).digest
    assert {finding["status"] for finding in report["findings"]} == {"ok", "not checked"}


def test_a_digest_and_a_gpu_can_be_asked_for(three_targets: Path) -> None:
    digest = Bundle.open(three_targets).digest

    assert ssd_aot("verify", three_targets, "--digest", digest).exit_code == 0
    assert ssd_aot("verify", three_targets, "--digest", "0" * 64).exit_code == 1
    assert ssd_aot("verify", three_targets, "--gpu", "b300").exit_code == 0
    assert ssd_aot("verify", three_targets, "--gpu", "h100").exit_code == 1
    assert ssd_aot("verify", three_targets, "--gpu", "b20").exit_code == 2


def test_running_without_a_gpu_lacks_a_gpu(
    three_targets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "_device", lambda: None)

    result = ssd_aot("verify", three_targets, "--run", "--json")

    assert result.exit_code == 3
    assert result.stdout == ""
    assert "needs a CUDA GPU" in result.stderr


DEVICES = {
    "the model built for": ("NVIDIA B300", (10, 3), "b300", 0, "served by b300"),
    "another model of its architecture": ("NVIDIA GB300", (10, 3), "gb300", 0, "b300, borrowed"),
    "another architecture": ("NVIDIA L40S", (8, 9), "l40s", 1, "compute capability 8.9"),
}


@pytest.mark.parametrize("case", DEVICES)
def test_the_gpu_here_is_served_by_its_own_architecture_alone(
    case: str, three_targets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C28."""
    name, capability, target, code, says = DEVICES[case]
    monkeypatch.setattr(checking, "_device", lambda: DeviceFacts(name, capability, target))

    result = ssd_aot("verify", three_targets)

    assert result.exit_code == code
    assert says in words(result.stdout)


def test_a_bundle_from_another_platform_verifies(
    three_targets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C29, for builtin kernels."""
    monkeypatch.setattr(sysconfig, "get_platform", lambda: "linux-aarch64")

    assert ssd_aot("verify", three_targets).exit_code == 0


def test_without_the_source_the_bundles_own_list_is_checked_and_that_is_said(
    tmp_path: Path,
) -> None:
    bundle = write_small_bundle(tmp_path / "b", source="vllm")

    assert "checked against the bundle's own list" in words(ssd_aot("verify", bundle.path).stdout)


def test_a_spec_whose_source_is_not_here_is_something_this_host_lacks(
    three_targets: Path, tmp_path: Path
) -> None:
    spec = write_spec(tmp_path, TINY + "source: vllm\n")

    result = ssd_aot("verify", three_targets, "--spec", spec)

    assert result.exit_code == 3
    assert "vllm" in result.stderr


def test_a_spec_in_the_bundle_that_cannot_be_used_is_a_finding(tmp_path: Path) -> None:
    bundle = write_small_bundle(tmp_path / "b")

    result = ssd_aot("verify", bundle.path)

    assert result.exit_code == 1
    assert "the spec in the bundle cannot be used" in words(result.stdout)


def test_a_bundle_that_cannot_be_opened_is_a_failed_report(tmp_path: Path) -> None:
    write_small_bundle(tmp_path / "b")
    with open(tmp_path / "b/manifest.json", "r+b") as file:
        file.write(b"[")

    report = checking.check_bundle(str(tmp_path / "b"), gpu="h100")

    assert not report.passed
    assert "manifest.json" in str(report)
    with pytest.raises(UsageError):
        checking.check_bundle("")


def test_what_is_no_bundle_fails(tmp_path: Path) -> None:
    assert ssd_aot("verify", tmp_path / "nothing").exit_code == 1
    assert ssd_aot("inspect", tmp_path / "nothing").exit_code == 1


def test_an_unknown_user_without_a_home_verifies_a_read_only_bundle(three_targets: Path) -> None:
    """C24."""
    program = (
        "import os, sys\n"
        # Once before, so that no module is left to import from a folder only root may enter.
        "import ssd_aot.cli\n"
        "arguments = ['verify', sys.argv[1]]\n"
        "ssd_aot.cli.main(arguments, standalone_mode=False) if os.getuid() == 0 else None\n"
        "if os.getuid() == 0: os.setuid(54321)\n"
        "os.environ.pop('HOME', None)\n"
        "ssd_aot.cli.main(arguments)\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        place = Path(folder, "bundle")
        python("-c", f"import shutil; shutil.copytree({str(three_targets)!r}, {str(place)!r})")
        places = (place, *place.rglob("*"))
        for entry in places:
            entry.chmod(entry.stat().st_mode & ~0o222)

        ended = python("-c", program, str(place), PYTHONDONTWRITEBYTECODE="1")

        for entry in places:
            entry.chmod(0o755)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count(": verified") == (2 if os.getuid() == 0 else 1)


def test_a_bundle_for_another_launch_interface_is_refused_before_it_is_shipped(
    bundle_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ssd_aot.verification.checking.launch_abi", lambda: "0" * 64)

    report = checking.check_bundle(str(bundle_copy))

    assert [finding.check for finding in report.failures] == ["launch"]
