"""The coverage table: each signature, covered or not, and how well founded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from bundle_builders import small_manifest
from command_line import TINY, ssd_aot
from planned_bundles import plan_of, planned_bundle
from spec_builders import write_spec

from ssd_aot.bundle.manifest import Tuning
from ssd_aot.launches import Launch
from ssd_aot.signatures import expand
from ssd_aot.spec import Spec, load_spec
from ssd_aot.verification.coverage import Coverage, coverage
from ssd_aot.verification.coverage_table import coverage_lines

TWO = """\
version: 1
models:
  first: {nheads: 16, headdim: 64, dstate: 128, ngroups: 8, tp: [1, 2, 4]}
  second: {nheads: 512, headdim: 64, dstate: 128, ngroups: 1, tp: [1, 8]}
matrix: {state_dtype: [fp32, fp16], num_seqs: [1, many]}
"""
"""Few heads, which run in segments, and many, which do so at tp 8 alone."""


def spec_of(text: str, folder: Path) -> Spec:
    return load_spec([write_spec(folder, text)])


def needs_segments(launch: Launch) -> bool:
    return launch.kernel == "segment_states"


def lines_of(found: Coverage) -> list[str]:
    return coverage_lines(found)


def test_a_whole_bundle_covers_every_signature_on_every_count(tmp_path: Path) -> None:
    spec = spec_of(TWO, tmp_path)
    bundle = planned_bundle(tmp_path / "b", spec)

    for found in (
        coverage(bundle.manifest),
        coverage(bundle.manifest, plan_of(spec).required()),
    ):
        assert found.derived
        assert len(found.cells) == (3 + 2) * 2 * 2 * 2
        assert all(cell.covered and cell.held == cell.needed for cell in found.cells)


@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_a_missing_launch_uncovers_the_signatures_that_need_it_and_no_other(
    command: str, tmp_path: Path
) -> None:
    """Removed from the manifest too: its own list would not tell."""
    bundle = planned_bundle(tmp_path / "b", spec_of(TWO, tmp_path), left_out=needs_segments)

    found = json.loads(ssd_aot(command, bundle.path, "--json").stdout)["coverage"]

    uncovered = {cell["signature"] for cell in found["signatures"] if not cell["covered"]}
    places = {tuple(name.split("/")[:2]) for name in uncovered}
    assert places == {("first", "tp1"), ("first", "tp2"), ("first", "tp4"), ("second", "tp8")}
    assert found["basis"] == "launches derived anew"


def test_signatures_of_the_spec_that_is_given_are_shown_though_the_bundle_lacks_them(
    tmp_path: Path,
) -> None:
    bundle = planned_bundle(tmp_path / "b", spec_of(TINY, tmp_path))
    wider = TINY.replace("[many]", "[many], state_dtype: [fp32, fp16]")

    result = ssd_aot("verify", bundle.path, "--spec", write_spec(tmp_path, wider))

    assert "tiny   1   1/2" in result.stdout
    uncovered = "tiny/tp1/bf16-bf16-bf16-fp16/c128/init/packed/seqs2..1024 5/8"
    assert f"not covered on h200, with the launches that are there:\n  {uncovered}" in result.stdout


STATUSES = {
    "measured": (Tuning("measured", True, 1.0, 2.0), "measured"),
    "default": (Tuning("default"), "default unchecked"),
    "borrowed": (Tuning("borrowed from h100", True), "borrowed from h100"),
    "pinned": (Tuning("pinned"), "pinned unchecked"),
}


@pytest.mark.parametrize("case", STATUSES)
def test_how_a_signature_is_tuned_is_said(case: str, tmp_path: Path) -> None:
    tuning, says = STATUSES[case]
    kernels = ("scan", "decay", "segment_states", "state_passing")
    bundle = planned_bundle(
        tmp_path / "b", spec_of(TINY, tmp_path), tuning=dict.fromkeys(kernels, tuning)
    )

    (cell,) = coverage(bundle.manifest).cells

    assert cell.tuned == says
    assert f"tuned: {says.replace(' unchecked', ', unchecked')}" in lines_of(
        coverage(bundle.manifest)
    )


def test_statuses_that_differ_are_counted(tmp_path: Path) -> None:
    measured = {"scan": Tuning("measured", True, 1.0, 2.0)}
    bundle = planned_bundle(tmp_path / "b", spec_of(TINY, tmp_path), tuning=measured)

    (cell,) = coverage(bundle.manifest).cells

    assert cell.tuned == "5 default 3 measured unchecked"
    assert cell.to_json()["tuning"] == {"default": 5, "measured": 3}
    assert cell.to_json()["unchecked"] == 5


def test_sizes_that_agree_share_a_row_and_what_all_share_stands_above(tmp_path: Path) -> None:
    bundle = planned_bundle(tmp_path / "b", spec_of(TWO, tmp_path), left_out=needs_segments)

    lines = lines_of(coverage(bundle.manifest))

    assert lines[0] == "coverage on h200"
    assert lines[1] == ("all: dtype bf16, state fp16 fp32, chunk 128, init no yes, seqs 1 2..1024")
    rows = [line.split() for line in lines if line.startswith(("first", "second"))]
    assert rows == [
        ["first", "1", "2", "4", "0/24"],
        ["second", "1", "8/8"],
        ["second", "8", "0/8"],
    ]


def test_the_table_fits_a_terminal_however_many_axes_vary(tmp_path: Path) -> None:
    text = """\
version: 1
models:
  a-model-whose-name-is-longer-than-most-names-that-models-have:
    {nheads: 4, headdim: 16, dstate: 16, ngroups: 1, tp: [1, 2, 4], chunk_size: [64, 128, 256]}
  other: {nheads: 4, headdim: 16, dstate: 16, ngroups: 1}
matrix: {state_dtype: [fp32, fp16, bf16], num_seqs: [1, 2..64, 65..512, many], z: [false, true]}
exclude:
  - {model: other, z: true}
  - {model: other, state_dtype: [bf16, fp16]}
  - {model: other, num_seqs: [1, 2..64, many]}
  - {model: other, HAS_INITSTATES: true}
"""
    more = text.replace(
        "z: [false, true]",
        """\
z: [false, true], D: [none, head], dt_bias: [false, true], layout: [engine, unaligned]""",
    )
    left_out = "".join(
        f"  - {{model: other, {axis}}}\n"
        for axis in ("D: none", "dt_bias: false", "layout: unaligned")
    )
    for number, wide in enumerate((text, more.replace("[64, 128, 256]", "64") + left_out)):
        spec = spec_of(wide, tmp_path)
        manifest = replace(
            small_manifest()[0],
            signatures=tuple((s.id, s.to_json()) for s in expand(spec)),
        )

        lines = lines_of(coverage(manifest))

        assert max(map(len, lines)) <= 80
        assert any(line.startswith("other  ") for line in lines)
        assert any(line.startswith("also vary: ") for line in lines) == bool(number)


def test_what_an_incomplete_bundle_of_another_source_covers_is_not_known() -> None:
    manifest = replace(small_manifest(source="vllm")[0], missing=("a launch of chunk_scan",))

    found = coverage(manifest)

    assert not found.derived
    assert {cell.covered for cell in found.cells} == {None}
    assert any("?/" in line for line in lines_of(found))


def test_kernels_of_the_models_path_that_the_bundle_lacks_are_named() -> None:
    """C08: prefill is covered, decode is not."""
    manifest = small_manifest()[0]
    recorded = ("chunk_scan", "chunk_state", "_selective_scan_update_kernel", "_causal_conv1d_fwd")

    found = coverage(manifest, recorded_kernels=recorded)

    outside = ["_causal_conv1d_fwd", "_selective_scan_update_kernel"]
    assert found.to_json()["kernels_outside"] == outside
    assert ", ".join(outside) in " ".join(lines_of(found)).replace("  ", "")


def test_without_a_recording_the_models_path_is_unknown_and_never_complete(tmp_path: Path) -> None:
    bundle = planned_bundle(tmp_path / "b", spec_of(TINY, tmp_path))

    for command in ("verify", "inspect"):
        said = " ".join(ssd_aot(command, bundle.path).stdout.split())
        found = json.loads(ssd_aot(command, bundle.path, "--json").stdout)["coverage"]

        assert "path outside the bundle: unknown, as no recording says" in said
        assert found["kernels_outside"] == "unknown"
