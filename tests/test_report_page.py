"""The report in a real browser: whole, quiet, offline, readable in light, dark, narrow, printed."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from report_builders import bench_json, entry_of, launch_named, record_file, report_bundle

from ssd_aot.bundle.manifest import Tuning
from ssd_aot.launches import Launch
from ssd_aot.report.bench_results import read_bench
from ssd_aot.report.page import render_page

sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install '.[dev]'")

CHROMIUM = os.environ.get("SSD_AOT_TEST_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None,
    reason="no Chromium: apt-get install chromium, or name one by SSD_AOT_TEST_CHROMIUM",
)

LEAST_CONTRAST = 4.5
"""Of text against what lies behind it: WCAG 2.2, success criterion 1.4.3."""

LEAST_MARK_CONTRAST = 3.0
"""Of what a picture's meaning hangs on: WCAG 2.2, success criterion 1.4.11."""

FIGURES = {
    "coverage": "measured", "candidates": "measured", "resources": "measured", "bench": "first",
}  # fmt: skip
"""Sections with pictures, and the role that their first marks are painted in."""

SHARED_SCRIPT = """
const luminance = ([r, g, b]) => {
  const [x, y, z] = [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
};
const contrast = (one, other) => {
  const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
};
const numbers = text => text.match(/[\\d.]+/g).map(Number);
const probe = document.createElement("i");
document.body.append(probe);
const role = name => {
  probe.style.color = `var(--${name})`;
  return numbers(getComputedStyle(probe).color);
};
"""

TEXT_CONTRASTS = (
    "() => {"
    + SHARED_SCRIPT
    + """
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const found = numbers(getComputedStyle(e).backgroundColor);
      if (found.length === 3 || found[3] > 0) return [found];
    }
  };
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const found = [];
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || !element.getClientRects().length) continue;
    const drawn = element.tagName === "text";
    if (!drawn && element.closest("svg")) continue;
    const style = getComputedStyle(element);
    const grounds = drawn ? ["paper", "band", "panel"].map(role) : behind(element);
    for (const ground of grounds)
      found.push([node.data.trim(), contrast(numbers(drawn ? style.fill : style.color), ground)]);
  }
  return found;
}"""
)

MARK_CONTRASTS = (
    "() => {"
    + SHARED_SCRIPT
    + """
  const marks = ["measured", "borrowed", "pinned", "default", "missing",
                 "first", "second", "third", "fourth", "fifth"];
  return marks.map(name => [name, contrast(role(name), role("paper"))]);
}"""
)


def has_no_fp16_states(launch: Launch) -> bool:
    return all(argument.type != "*fp16" for argument in launch.arguments)


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with everything in it: measured and rejected, borrowed, untuned, missing, a
    benchmark."""
    folder = tmp_path_factory.mktemp("page")
    tuning = {
        "scan": Tuning("measured", True, 90.0, 110.0), "decay": Tuning("borrowed from h100"),
        "segment_states": Tuning("pinned"),
    }  # fmt: skip
    bundle = report_bundle(folder / "b", tuning=tuning, held=has_no_fp16_states)
    scan = launch_named(bundle, "scan", SEGMENT=0)
    record = record_file(entry_of(scan, winner=1), entry_of(launch_named(bundle, "decay")))
    (folder / "bench.json").write_text(json.dumps(bench_json()))
    path = folder / "report.html"
    path.write_text(render_page(bundle, [record], read_bench(folder / "bench.json")))
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        # Containers give Chromium no sandbox of its own to make; the page is ours.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Opened:
    """A page in a tab of its own, with what it asked for and complained of."""

    def __init__(self, browser: Any, file: Path, scheme: str, width: int) -> None:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True
        )
        self.tab = context.new_page()
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.on("console", lambda message: self.complaints.append(message.text))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.goto(file.as_uri())

    def open_all(self) -> None:
        self.tab.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")

    def colour(self, role: str) -> tuple[int, int, int]:
        """The colour of a role, as the page has it now."""
        script = f"() => {{ {SHARED_SCRIPT} return role('{role}') }}"
        red, green, blue = self.tab.evaluate(script)
        return red, green, blue

    def pixels(self, locator: Any) -> Image.Image:
        return Image.open(io.BytesIO(locator.screenshot())).convert("RGB")


@pytest.fixture
def opened(browser: Any, page_file: Path, request: pytest.FixtureRequest) -> Iterator[Opened]:
    scheme, width = getattr(request, "param", ("light", 1280))
    found = Opened(browser, page_file, scheme, width)
    yield found
    found.tab.context.close()


everywhere = pytest.mark.parametrize(
    "opened",
    [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)],
    indirect=True,
    ids=lambda look: f"{look[0]}-{look[1]}",
)


def test_it_asks_for_nothing_and_complains_of_nothing(opened: Opened, page_file: Path) -> None:
    opened.open_all()

    assert [url for url in opened.requests if not url.startswith("data:")] == [page_file.as_uri()]
    assert opened.complaints == []


def test_every_section_is_shown_and_the_contents_lead_to_it(opened: Opened) -> None:
    for link in opened.tab.locator("nav a").all():
        section = opened.tab.locator(link.get_attribute("href"))
        box = section.bounding_box()
        assert box["width"] > 300 and box["height"] > 100
        assert section.locator("h2").inner_text().strip()
    assert opened.tab.locator("main > section").count() == opened.tab.locator("nav a").count()


@everywhere
def test_the_pictures_are_drawn(opened: Opened) -> None:
    opened.open_all()
    for name, role in FIGURES.items():
        figures = opened.tab.locator(f"#{name} figure svg.drawing:visible").all()
        assert figures, name
        for figure in figures:
            box = figure.bounding_box()
            assert box["width"] > 250 and box["height"] > 60, name
            assert figure.locator("path, use").count() > 8, name
            assert figure.locator("text").count() > 2, name
            colours = opened.pixels(figure).getcolors(1 << 24) or []
            painted = {colour: count for count, colour in colours}
            assert painted.get(opened.colour(role), 0) > 40, name


@everywhere
def test_no_width_makes_the_page_scroll_sideways(opened: Opened) -> None:
    opened.open_all()

    widths = opened.tab.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )

    assert widths[0] == widths[1]


@everywhere
def test_text_is_readable_on_what_lies_behind_it(opened: Opened) -> None:
    opened.open_all()

    found = opened.tab.evaluate(TEXT_CONTRASTS)

    assert len(found) > 300
    assert [(text, ratio) for text, ratio in found if ratio < LEAST_CONTRAST] == []


@pytest.mark.parametrize("opened", [("light", 1280), ("dark", 1280)], indirect=True)
def test_marks_stand_out_from_the_paper(opened: Opened) -> None:
    found = opened.tab.evaluate(MARK_CONTRASTS)

    assert [(name, ratio) for name, ratio in found if ratio < LEAST_MARK_CONTRAST] == []


def test_light_and_dark_are_two_looks(browser: Any, page_file: Path) -> None:
    looks = [Opened(browser, page_file, scheme, 1280) for scheme in ("light", "dark")]

    light, dark = (sum(look.colour("paper")) for look in looks)
    shots = [look.pixels(look.tab.locator("#coverage figure")) for look in looks]

    assert light > 700 and dark < 100
    assert shots[0].size == shots[1].size and shots[0].tobytes() != shots[1].tobytes()
    for look in looks:
        look.tab.context.close()


def test_a_picture_has_a_name_and_its_marks_say_what_they_are(opened: Opened) -> None:
    picture = opened.tab.locator("#candidates figure").first
    assert picture.get_by_role("img").first.get_attribute("aria-labelledby")
    names = opened.tab.locator("svg.drawing").evaluate_all(
        "all => all.map(e => e.getAttribute('aria-labelledby').split(' ')"
        ".map(id => document.getElementById(id).textContent).join(': '))"
    )
    assert len(names) > 12 and all(names)
    assert any("4 candidates timed, 1 rejected" in name for name in names)
    tips = opened.tab.locator("#coverage figure .wide g title").all_text_contents()
    assert sum("tiny-7b/tp1/" in tip for tip in tips) == 2


@pytest.mark.parametrize("opened", [("dark", 1280)], indirect=True)
def test_on_paper_everything_is_light_open_and_whole(opened: Opened) -> None:
    opened.tab.emulate_media(media="print")

    assert sum(opened.colour("paper")) > 700
    assert opened.tab.locator("nav").is_hidden()
    assert opened.tab.locator("details.group figure .wide").last.is_visible()
    assert opened.tab.locator("#origin details pre").is_visible()
    pdf = opened.tab.pdf(format="A4")
    assert pdf.startswith(b"%PDF")
    assert 4 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 20


def test_it_reads_without_scripts(browser: Any, page_file: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    tab = context.new_page()
    tab.goto(page_file.as_uri())

    tab.locator("#origin summary").first.click()

    assert tab.locator("#origin details pre").first.is_visible()
    assert tab.locator("#candidates figure .wide").first.is_visible()
    context.close()
