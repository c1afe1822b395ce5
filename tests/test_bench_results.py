"""The result of a benchmark read back, and what it leaves open about a bundle."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bundle_builders import B200, H200
from report_builders import bench_json

from ssd_aot.errors import UsageError
from ssd_aot.measurement.benching import Bench, Row, Timing
from ssd_aot.report.bench_results import BenchResults, Span, read_bench
from ssd_aot.report.bench_section import bench_section
from ssd_aot.report.painting import Painter
from ssd_aot.report.svg import drawing


def read(tmp_path: Path, value: Any) -> BenchResults:
    path = tmp_path / "bench.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return read_bench(path)


def test_what_bench_prints_is_read_whole(tmp_path: Path) -> None:
    timing = Timing(20.0, 19.0, 22.0)
    rows = (Row("512 tokens", "drop-in", timing, timing), Row("512 tokens", "graph", timing, None))
    made = Bench("ab" * 32, {"GPU": "NVIDIA H200"}, rows, {"vllm": "not installed"})

    found = read(tmp_path, made.to_json())

    assert found.digest == made.digest
    assert found.gpu == "NVIDIA H200"
    assert found.workloads == ("512 tokens",)
    assert found.contestants(device=True) == ("drop-in",)
    assert found.contestants(device=False) == ("drop-in", "graph")
    row = found.row("512 tokens", "drop-in")
    assert row is not None and row.device == Span(20.0, 19.0, 22.0)
    assert found.absent == (("vllm", "not installed"),)


def test_fields_of_a_later_release_are_left_aside(tmp_path: Path) -> None:
    assert read(tmp_path, bench_json(format=2)) == read(tmp_path, bench_json())


def changed(path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    made = deepcopy(bench_json())
    place: Any = made
    for step in path[:-1]:
        place = place[step]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return made


@pytest.mark.parametrize(
    ("value", "where", "found"),
    [
        ("{", "bench.json:1", "Expecting property name"),
        ([], "bench.json", "[]"),
        ({"rows": []}, "bench.json: rows", "no rows"),
        (changed(("machine",), None), "bench.json: machine", "a field is missing"),
        (changed(("rows", 1, "host"), None), "bench.json: rows[1].host", "a field is missing"),
        (changed(("rows", 0, "host", "low_us"), -1), "bench.json: rows[0].host.low_us", "-1"),
        (changed(("rows", 0, "device", "low_us"), "x"), "bench.json: rows[0].device.low_us", "x"),
        (bench_json(digest="abc"), "bench.json: digest", "abc"),
    ],
)
def test_what_is_no_result_is_refused_by_file_and_field(
    tmp_path: Path, value: Any, where: str, found: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, value)

    assert caught.value.where.endswith(where)
    assert found in caught.value.found
    assert "ssd-aot bench BUNDLE --json" in caught.value.mend


def notes(results: BenchResults, *targets: Any) -> tuple[str, ...]:
    with drawing():
        return bench_section(results, targets or (H200,), "d" * 64, Painter()).notes


def test_a_result_of_this_bundle_on_its_gpu_needs_no_note(tmp_path: Path) -> None:
    assert notes(read(tmp_path, bench_json(digest="d" * 64))) == ()


def test_a_result_that_names_no_bundle_or_another_one_says_so(tmp_path: Path) -> None:
    nameless = read(tmp_path, bench_json())

    assert "does not say which bundle" in notes(nameless)[0]
    assert "Another bundle was measured: eeee" in notes(replace(nameless, digest="e" * 64))[0]


def test_a_result_of_another_gpu_says_so(tmp_path: Path) -> None:
    (note,) = notes(read(tmp_path, bench_json(digest="d" * 64)), B200)

    assert note == "The GPU measured is none that this bundle was built for (b200)."


def test_engines_are_set_against_the_drop_in_call_and_bare_launches_stand_apart(
    tmp_path: Path,
) -> None:
    with drawing():
        section = bench_section(read(tmp_path, bench_json()), (H200,), "", Painter())

    assert section.device_table.columns == ("drop-in", "prepared layer", "vLLM", "vLLM ÷ drop-in")
    assert section.device_table.rows[0] == ("512 tokens", ("50.0", "50.0", "125.0", "2.5×"))
    assert section.host_table.columns[-1] == "bare launches"
    assert section.host_table.rows[0][1][-2:] == ("20.0×", "2: 8.0")
