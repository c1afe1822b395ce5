"""`ssd-aot report`: one self-contained page, the same from the same, and honest."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from bundle_builders import H200, manifest, signature, variant, write_bundle
from command_line import elsewhere, ssd_aot
from cubin_builders import fake_cubin
from matplotlib.figure import Figure
from report_builders import (
    FOUR,
    bench_json,
    entry_of,
    launch_named,
    record_file,
    report_bundle,
)

from ssd_aot.bundle.manifest import Tuning
from ssd_aot.bundle.store import Bundle
from ssd_aot.launches import Argument, Launch
from ssd_aot.report.page import render_page
from ssd_aot.report.svg import PAINT, TIP, Styles, blank, drawing, inline_svg
from ssd_aot.tuning.choices import RecordFile
from ssd_aot.tuning.record_text import write_record

MEASURED = {"scan": Tuning("measured", True, 90.0, 110.0)}
SECTIONS = ("open", "coverage", "candidates", "resources", "bench", "origin", "words")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return report_bundle(tmp_path_factory.mktemp("report") / "b", tuning=MEASURED)


def record_of(bundle: Bundle) -> RecordFile:
    scan = launch_named(bundle, "scan", SEGMENT=0)
    return record_file(entry_of(scan, winner=1), entry_of(launch_named(bundle, "decay")))


def words_of(page: str) -> str:
    """What a reader sees of a page, without its figures."""
    body = re.sub(r"<svg.*?</svg>|<style>.*?</style>", " ", page, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", body)).split())


def test_the_command_writes_the_page_and_prints_where(bundle: Bundle, tmp_path: Path) -> None:
    out = tmp_path / "new" / "report.html"

    result = ssd_aot("report", bundle.path, "-o", out)

    assert result.exit_code == 0
    written, digest = result.stdout.splitlines()
    assert written == f"{out}: {out.stat().st_size / 1000:.1f} kB"
    assert digest == f"digest {bundle.digest}"
    assert out.read_text().startswith("<!DOCTYPE html>")
    assert [path.name for path in out.parent.iterdir()] == ["report.html"]


def test_the_command_takes_records_and_a_benchmark(bundle: Bundle, tmp_path: Path) -> None:
    record, bench, out = (tmp_path / name for name in ("own.json", "bench.json", "r.html"))
    write_record(record, record_of(bundle).record)
    bench.write_text(json.dumps(bench_json()))

    result = ssd_aot(
        "report", bundle.path, "--out", out, "--tuning", record, "--bench", bench, "--json"
    )

    assert json.loads(result.stdout) == {
        "path": str(out), "digest": bundle.digest, "bytes": out.stat().st_size,
        "records": [str(record)], "bench": str(bench),
    }  # fmt: skip
    text = words_of(out.read_text())
    assert "Tuning records at hand own.json" in text
    assert "vLLM ÷ drop-in" in text


def test_the_same_bundle_gives_the_same_bytes_wherever_it_lies(
    bundle: Bundle, tmp_path: Path
) -> None:
    moved = shutil.copytree(bundle.path, tmp_path / "other" / "name")
    pages = []
    for seed, folder in (("1", bundle.path), ("2", moved)):
        out = tmp_path / f"{seed}.html"
        result = elsewhere("report", folder, "-o", out, cwd=tmp_path, PYTHONHASHSEED=seed)
        assert result.returncode == 0, result.stderr
        pages.append(out.read_bytes())

    assert pages[0] == pages[1]
    assert str(tmp_path).encode() not in pages[0]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("nowhere",), 1, "no bundle can be read here"),
        (("BUNDLE", "--bench", "broken"), 2, "the benchmark's result cannot be read"),
        (("BUNDLE", "--tuning", "broken"), 2, "the tuning record cannot be read"),
        (("BUNDLE", "-o", "broken/r.html"), 3, "the report cannot be written"),
    ],
)
def test_what_cannot_be_read_or_written_is_told(
    bundle: Bundle,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken").write_text("{")

    result = ssd_aot("report", *(bundle.path if text == "BUNDLE" else text for text in arguments))

    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr


def test_without_its_libraries_the_command_says_how_to_get_them(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jinja2", None)

    result = ssd_aot("report", bundle.path, "-o", tmp_path / "r.html")

    assert result.exit_code == 3
    assert "pip install 'ssd-aot[report]'" in result.stderr
    assert not list(tmp_path.iterdir())


def test_every_section_is_there_and_nothing_is_fetched(bundle: Bundle) -> None:
    page = render_page(bundle, [record_of(bundle)])

    assert tuple(re.findall(r'<section id="(\w+)">', page)) == SECTIONS
    assert re.findall(r'href="(#\w+)"', page)[: len(SECTIONS)] == [f"#{name}" for name in SECTIONS]
    assert not re.search(r"""(?:src|href)=["'](?!#|data:,)|url\((?!#)|@import|<script""", page)


def test_names_within_the_page_are_unique_and_lead_somewhere(bundle: Bundle) -> None:
    page = render_page(bundle, [record_of(bundle)])

    names = re.findall(r'\bid="([^"]+)"', page)
    used = re.findall(r'(?:href="#|url\(#)([^")]+)', page)
    used += " ".join(re.findall(r'aria-labelledby="([^"]+)"', page)).split()
    assert len(names) == len(set(names))
    assert set(used) <= set(names)


def test_the_winner_and_the_rejected_are_shown_with_their_reasons(bundle: Bundle) -> None:
    text = words_of(render_page(bundle, [record_of(bundle)]))

    assert "5 candidates · 1 rejected · another won, up to 1.22 times as fast" in text
    assert "Rejected outputs off by 1.2e-02 at lengths (700,)" in text
    assert "Measured on NVIDIA H200, driver 570.1, 2026-01-02" in text
    assert "64 heads, 8 sequences, 8,192 tokens" in text
    assert "the bundle holds another configuration than this record's winner" in text


def test_numbers_that_nobody_measured_are_not_there(bundle: Bundle) -> None:
    text = words_of(render_page(bundle, []))

    assert "No measurement is shown: no tuning record was at hand" in text
    assert "No measurement to show: no record was at hand" in text
    assert "No benchmark was given, so nothing is said here about speed" in text
    assert "the measurements are not at hand" in text
    assert text.count("not measured") >= 8


def test_a_damaged_bundle_is_shown_as_damaged(tmp_path: Path) -> None:
    bundle = report_bundle(tmp_path / "b", FOUR[:1])
    (bundle.path / bundle.manifest.files[0][0]).write_bytes(b"other")

    text = words_of(render_page(bundle, []))

    assert "State Damaged 1 problem with its files" in text
    assert "1 file of the bundle is not as built" in text


def test_an_incomplete_bundle_names_what_is_missing(tmp_path: Path) -> None:
    bundle = report_bundle(tmp_path / "b", FOUR[:1], held=lambda launch: launch.kernel != "decay")

    text = words_of(render_page(bundle, []))

    assert "State Incomplete 1 launch missing" in text
    assert "Signatures covered 0 of 1" in text
    assert "decay for h200: every geometry, dt in bf16; needed by 1 signature" in text


def test_a_bundle_of_an_engines_kernels_is_shown_too(tmp_path: Path) -> None:
    kernel, one = "engine.ops.ssd:_chunk_scan_fwd_kernel", signature()
    data = fake_cubin(90, b"engine")
    call = Launch(kernel, (("hdim", 64),), (Argument("x_ptr", "*bf16", "aligned"),))
    entry = variant(data, target=H200, launch=call, signatures=[one.id])
    made = replace(manifest([entry], [one], targets=(H200,), source="vllm"), launch_abi="")
    engine = write_bundle(tmp_path / "b", made, {entry.object.path: data})

    text = words_of(render_page(engine, []))

    assert "_chunk_scan_fwd_kernel" in text
    assert "On such a GPU build it again" in text
    assert "Launch interface" not in text


def test_a_bundle_without_any_code_is_a_page_all_the_same(tmp_path: Path) -> None:
    bundle = report_bundle(tmp_path / "b", FOUR[:1], held=lambda launch: False)

    assert "Measured launches 0 of 0" in words_of(render_page(bundle, []))


def test_text_from_outside_stays_text(tmp_path: Path) -> None:
    one = replace(FOUR[0], model="<script>alert(1)</script>")
    bundle = report_bundle(tmp_path / "b", [one], missing=("<img src=x> & more",))

    page = render_page(bundle, [])

    assert "<script" not in page and "<img" not in page
    assert "&lt;img src=x&gt; &amp; more" in page


def figure(**line: Any) -> Figure:
    made = blank(100, 50)
    axes = made.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.plot([0, 1], [0, 1], "o", **{"color": PAINT["measured"], **line})
    axes.text(0, 0, "a < b", color=PAINT["ink"], fontweight="bold")
    return made


def test_figures_follow_the_pages_colours_and_keep_their_letters() -> None:
    styles = Styles()
    with drawing():
        svg = inline_svg(
            figure(gid=TIP + "1 & 2"), styles, key="f1", title="One", description="Two"
        )

    root = ElementTree.fromstring(svg)
    assert root.attrib["aria-labelledby"] == "f1-title f1-about"
    assert [element.text for element in root.iter("title")] == ["One", "1 & 2"]
    assert [element.text for element in root.iter("text")] == ["a < b"]
    assert "fill: var(--ink)" in styles.css and "var(--measured)" in styles.css
    assert not re.search("#[0-9a-f]{6}|font-family", styles.css)
    assert "style=" not in svg.partition(">")[2]


def test_two_figures_on_a_page_share_no_name() -> None:
    styles = Styles()
    with drawing():
        both = [inline_svg(figure(), styles, key=key, title=key) for key in ("f1", "f2")]

    names = [set(re.findall(r'\bid="([^"]+)"', svg)) for svg in both]
    assert names[0] and names[0].isdisjoint(names[1])


def test_a_colour_that_is_no_roles_is_refused() -> None:
    with drawing(), pytest.raises(ValueError, match="#123456 is no role's colour"):
        inline_svg(figure(color="#123456"), Styles(), key="f1", title="One")
