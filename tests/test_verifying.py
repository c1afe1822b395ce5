"""Verifying: every fault is a finding that names it; what could not be checked says so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundle_builders import (
    B200,
    H100,
    H200,
    TOOLCHAIN,
    launch,
    manifest,
    signature,
    variant,
    write_bundle,
    write_small_bundle,
)
from cubin_builders import fake_cubin

from ssd_aot.bundle.choosing import DeviceFacts, check_host, choose_target
from ssd_aot.bundle.manifest import TargetEntry
from ssd_aot.bundle.store import Bundle
from ssd_aot.errors import MismatchError
from ssd_aot.launches import Launch
from ssd_aot.verification.findings import Finding
from ssd_aot.verification.verifying import HostFacts, RequiredLaunch, RequiredPlan, verify


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return write_small_bundle(tmp_path / "b")


def plan_of(bundle: Bundle, extra: dict[str, tuple[Launch, tuple[str, ...]]]) -> RequiredPlan:
    have = {v.launch.identity: (v.launch, v.signatures) for v in bundle.manifest.variants}
    return RequiredPlan.of({**have, **extra}, dict(bundle.manifest.signatures))


def failure(bundle: Bundle, **facts: Any) -> Finding:
    report = verify(bundle, **facts)
    assert not report.passed
    (finding,) = report.failures
    return finding


def outcome(bundle: Bundle, check: str, **facts: Any) -> list[str]:
    return [f.status for f in verify(bundle, **facts).findings if f.check == check]


def test_a_whole_bundle_passes_and_says_what_was_not_checked(bundle: Bundle) -> None:
    report = verify(bundle)

    assert report.passed
    assert {f.check: f.status for f in report.findings} == {
        "digest": "not checked",
        "files": "ok",
        "architecture": "ok",
        "code": "ok",
        "completeness": "ok",
        "host": "ok",
        "device": "not checked",
    }
    assert "checked against the bundle's own list of launches" in " ".join(str(report).split())


def test_each_file_problem_is_a_failure_with_the_variant(bundle: Bundle) -> None:
    entry = bundle.manifest.variants[0]
    (bundle.path / entry.object.path).unlink()

    finding = failure(bundle)

    assert entry.object.path in finding.what
    assert entry.name in finding.what


def test_a_world_writable_folder_fails(bundle: Bundle) -> None:
    bundle.path.chmod(0o777)

    assert "writable" in failure(bundle).what


def test_code_for_another_architecture_fails_with_both(tmp_path: Path) -> None:
    data = fake_cubin(80)
    one = signature()
    entry = variant(data, launch=launch(), signatures=[one.id])
    made = manifest([entry], [one])

    finding = failure(write_bundle(tmp_path / "b", made, {entry.object.path: data}))

    assert finding.check == "architecture"
    assert "sm_80" in finding.found
    assert "sm_90a" in finding.wanted
    assert entry.name in finding.what


def test_what_is_no_cubin_fails_though_its_hash_is_right(tmp_path: Path) -> None:
    one = signature()
    entry = variant(b"truncated", signatures=[one.id])
    made = manifest([entry], [one])

    finding = failure(write_bundle(tmp_path / "b", made, {entry.object.path: b"truncated"}))

    assert finding.check == "architecture"
    assert entry.object.path in finding.what


def test_what_the_build_could_not_make_fails_by_name(tmp_path: Path) -> None:
    bundle = write_small_bundle(tmp_path / "b", missing=("chunk_scan[N=1]",))

    assert failure(bundle).found == "chunk_scan[N=1]"


def test_a_signature_without_any_launch_fails_even_without_a_plan(tmp_path: Path) -> None:
    data = fake_cubin(90)
    one, other = signature(tp=1), signature(tp=2)
    made = manifest([entry := variant(data, signatures=[one.id])], [one, other])

    finding = failure(write_bundle(tmp_path / "b", made, {entry.object.path: data}))

    assert other.id in finding.what


def test_a_plan_that_the_bundle_covers_passes(bundle: Bundle) -> None:
    report = verify(bundle, required=plan_of(bundle, {}))

    assert report.passed
    assert "checked against the launches that the spec needs" in " ".join(str(report).split())


def test_each_missing_launch_names_kernel_target_and_signatures(bundle: Bundle) -> None:
    new = launch("state_passing", N=3)

    report = verify(bundle, required=plan_of(bundle, {new.identity: (new, ("sig a", "sig b"))}))

    assert len(report.failures) == 2
    for finding, target in zip(report.failures, ("b200", "h100"), strict=True):
        for text in ("state_passing", target, "sig a", "sig b"):
            assert text in finding.what
        assert finding.wanted == str(new)


def test_a_launch_may_be_needed_for_one_target_alone(bundle: Bundle) -> None:
    need = RequiredLaunch(launch("state_passing"), ("sig a",), targets=("b200",))

    assert "b200" in failure(bundle, required=RequiredPlan((need,), {})).what


def test_a_signature_of_the_spec_that_the_bundle_lacks_is_named(bundle: Bundle) -> None:
    new = signature(model="other")

    finding = failure(bundle, required=RequiredPlan((), {new.id: new.to_json()}))

    assert new.id in finding.what


def test_a_signature_with_other_geometry_under_the_same_id_fails(bundle: Bundle) -> None:
    changed = replace(signature(tp=1), nheads=99)

    finding = failure(bundle, required=RequiredPlan((), {changed.id: changed.to_json()}))

    assert "nheads" in finding.what
    assert (finding.found, finding.wanted) == ("8", "99")


def test_the_digest_is_compared_where_one_is_given(bundle: Bundle) -> None:
    assert outcome(bundle, "digest", digest=bundle.digest) == ["ok"]
    assert failure(bundle, digest="0" * 64).found == bundle.digest


def test_a_gpu_that_must_be_there_is_looked_for(bundle: Bundle) -> None:
    assert outcome(bundle, "target", gpu="h100") == ["ok"]
    assert failure(bundle, gpu="b300").mend == "ssd-aot build --gpu b300"


def test_a_device_is_compared_with_the_targets(bundle: Bundle) -> None:
    own = DeviceFacts("NVIDIA H100 80GB HBM3", (9, 0), "h100")
    sibling = DeviceFacts("NVIDIA H200", (9, 0), "h200")

    assert outcome(bundle, "device", device=own) == ["ok"]
    assert "borrowed" in str(verify(bundle, device=sibling))
    assert failure(bundle, device=DeviceFacts("NVIDIA B300", (10, 3), "b300")).found == (
        "compute capability 10.3"
    )


@pytest.mark.parametrize(
    ("targets", "capability", "device_target", "name", "borrowed"),
    [
        ([H100, B200], (9, 0), "h100", "h100", False),
        ([H100, H200], (9, 0), "h200", "h200", False),
        ([H200, H100], (9, 0), "gh200", "h100", True),
        ([H100, H200], (9, 0), None, "h100", True),
        ([H100, B200], (10, 0), "gb200", "b200", True),
    ],
)
def test_a_target_is_chosen_by_capability_then_by_name(
    targets: Sequence[TargetEntry],
    capability: tuple[int, int],
    device_target: str | None,
    name: str,
    borrowed: bool,
) -> None:
    chosen, is_borrowed = choose_target(targets, capability, "a GPU", device_target)

    assert (chosen.name, is_borrowed) == (name, borrowed)


@pytest.mark.parametrize(
    ("target", "capability", "device_target"),
    [(B200, (10, 3), "b300"), (H100, (10, 0), "b200"), (H100, (12, 1), None)],
)
def test_a_device_of_another_capability_is_refused_with_both(
    target: TargetEntry, capability: tuple[int, int], device_target: str | None
) -> None:
    with pytest.raises(MismatchError) as caught:
        choose_target([target], capability, "NVIDIA GPU", device_target)

    error = caught.value
    assert error.where == "NVIDIA GPU"
    assert error.found == f"compute capability {capability[0]}.{capability[1]}"
    assert target.name in error.wanted
    assert f"ssd-aot build --gpu {device_target or 'NAME'}" in error.mend


AARCH64 = HostFacts("linux-aarch64", "cpython-312-aarch64-linux-gnu")
BUILT = HostFacts(TOOLCHAIN.platform, TOOLCHAIN.python_abi)


def test_builtin_kernels_run_on_another_platform(bundle: Bundle) -> None:
    check_host(bundle.manifest, AARCH64.platform, AARCH64.python_abi)

    assert verify(bundle, host=AARCH64).passed


def test_engine_kernels_are_refused_on_another_platform(tmp_path: Path) -> None:
    bundle = write_small_bundle(tmp_path / "b", source="vllm")

    assert verify(bundle, host=BUILT).passed
    assert outcome(bundle, "host") == ["not checked"]
    finding = failure(bundle, host=AARCH64)
    assert "linux-aarch64" in finding.found
    assert TOOLCHAIN.platform in finding.wanted


def test_the_report_is_one_json_document_and_fits_a_terminal(tmp_path: Path) -> None:
    long = "model-with-a-long-name/" * 8
    bundle = write_small_bundle(tmp_path / "b", missing=tuple(f"{long}{i}" for i in range(30)))

    report = verify(bundle, digest="0" * 64)

    data = json.loads(json.dumps(report.to_json()))
    assert data["passed"] is False
    assert data["digest"] == bundle.digest
    assert sum(f["check"] == "completeness" for f in data["findings"]) == 30
    assert max(map(len, str(report).splitlines())) <= 80
    assert "10 more" in str(report)
