"""Figures as inline SVG that takes its colours and fonts from the page around it.

Matplotlib draws with one placeholder colour a role; the text then names CSS variables in their
place, so that one drawing serves light, dark and paper. Letters stay letters, to be read aloud,
searched and copied.
"""

from __future__ import annotations

import io
import logging
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import matplotlib
import matplotlib.style
from matplotlib.figure import Figure

ROLES = (
    "paper", "panel", "ink", "muted", "line", "band",
    "measured", "borrowed", "pinned", "default", "missing",
    "first", "second", "third", "fourth", "fifth",
)  # fmt: skip
"""What a colour means; the page's style sheet has a variable of each name."""

PAINT: Mapping[str, str] = {role: f"#fe{number:02x}ef" for number, role in enumerate(ROLES)}
"""The placeholder colour of each role."""

WIDE, NARROW = 720, 336
"""Figure widths in CSS pixels: for a screen or a sheet of paper, and for a telephone."""

TIP = "tip: "
"""What an artist's gid starts with when the rest is to be its tool tip."""

_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
_VARIABLES = {paint: f"var(--{role})" for role, paint in PAINT.items()}
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ssd-aot",
    "font.family": "DejaVu Sans",
    "font.size": 12.0,
    "text.parse_math": False,
    "figure.dpi": 72.0,
    "path.simplify": False,
}


class Styles:
    """The styles of a page's figures, each written once and named where it is used."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def name(self, style: str) -> str:
        return self._names.setdefault(style, f"s{len(self._names)}")

    @property
    def css(self) -> str:
        """A style sheet of them all, after every figure was drawn."""
        return "\n".join(f".{name} {{ {style} }}" for style, name in self._names.items())


@contextmanager
def drawing() -> Iterator[None]:
    """Matplotlib as the figures expect it, whatever the user's own settings are."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with matplotlib.rc_context(), matplotlib.style.context("default"):
        matplotlib.rcParams.update(_SETTINGS)
        yield


def blank(width: float, height: float) -> Figure:
    """An empty figure of that size in CSS pixels, through which the page shows."""
    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    figure.patch.set_visible(False)
    return figure


def inline_svg(
    figure: Figure, styles: Styles, *, key: str, title: str, description: str = ""
) -> str:
    """The figure as an `svg` element for an HTML page, with a name for those who cannot see it.

    `key` tells the figures of a page apart: the names inside start with it. Raises ValueError for
    a colour that is no role's, since it would not follow the page from light to dark.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    root = ElementTree.fromstring(buffer.getvalue())
    _drop_wrapping(root)
    _name_parts(root, key)
    for element in root.iter():
        for name, value in list(element.attrib.items()):
            element.set(name, _restyled(name, value))
        if re.match(r"rotate\(-?0 ", element.get("transform", "")):
            del element.attrib["transform"]
        if "style" in element.attrib:
            element.set("class", styles.name(element.attrib.pop("style")))
    _unwrap(root)
    width, height = (round(72 * side) for side in figure.get_size_inches())
    root.attrib = {
        "class": "drawing", "viewBox": f"0 0 {width} {height}", "role": "img",
        "aria-labelledby": f"{key}-title" + (f" {key}-about" if description else ""),
        "style": f"max-width: {width}px",
    }  # fmt: skip
    for place, (suffix, tag, text) in enumerate(
        (("title", "title", title), ("about", "desc", description))
    ):
        if text:
            label = ElementTree.Element(f"{_SVG}{tag}", {"id": f"{key}-{suffix}"})
            label.text = text
            root.insert(place, label)
    return _plain_text(root)


def _drop_wrapping(root: ElementTree.Element) -> None:
    """Take out what is of no use inside a page: metadata, and rules that would reach all of it."""
    for parent in list(root.iter()):
        for child in list(parent):
            rules = child.tag == f"{_SVG}defs" and child.find(f"{_SVG}style") is not None
            if rules or child.tag == f"{_SVG}metadata":
                parent.remove(child)


def _name_parts(root: ElementTree.Element, key: str) -> None:
    """Keep only names that something refers to, made unique by `key`; turn tips into titles."""
    used = {
        name
        for element in root.iter()
        for value in element.attrib.values()
        for name in re.findall(r"^#(.+)$|url\(#(.+?)\)", value)
        for name in name
        if name
    }
    names: dict[str, str] = {}
    for element in root.iter():
        name = element.attrib.pop("id", "")
        if name in used:
            names[name] = f"{key}-{len(names)}"
            element.set("id", names[name])
        elif name.startswith(TIP):
            tip = ElementTree.Element(f"{_SVG}title")
            tip.text = name.removeprefix(TIP)
            element.insert(0, tip)
    for element in root.iter():
        if _LINK in element.attrib:
            element.set("href", "#" + names[element.attrib.pop(_LINK)[1:]])
        for name, value in list(element.attrib.items()):
            element.set(name, re.sub(r"url\(#(.+?)\)", lambda m: f"url(#{names[m[1]]})", value))


def _unwrap(element: ElementTree.Element) -> None:
    """Put the content of groups that say nothing in their place."""
    children: list[ElementTree.Element] = []
    for child in element:
        _unwrap(child)
        titled = child.find(f"{_SVG}title") is not None
        children += [child] if child.tag != f"{_SVG}g" or child.attrib or titled else list(child)
    element[:] = children


def _restyled(name: str, value: str) -> str:
    if name == "style":
        # Releases before 3.10 write one `font`, later ones its parts.
        value = re.sub(r"font: (?:(bold|[6-9]00) )?([\d.]+)px [^;]+", _font, value)
        value = re.sub(r"(?:; )?font-family: [^;]+", "", value)
        return re.sub(r"#[0-9a-f]{6}\b", _role, value)
    if name in ("d", "x", "y", "transform", "width", "height"):
        value = re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", value)
        return re.sub(r"\s+", " ", value).strip()
    return value


def _font(match: re.Match[str]) -> str:
    weight = "font-weight: 700; " if match[1] else ""
    return f"{weight}font-size: {float(match[2]):g}px"


def _role(match: re.Match[str]) -> str:
    if match[0] not in _VARIABLES:
        raise ValueError(f"{match[0]} is no role's colour")
    return _VARIABLES[match[0]]


def _plain_text(root: ElementTree.Element) -> str:
    """Inside HTML an svg element needs no namespaces, and white space in it is of no use."""
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        if element.tag not in ("text", "title", "desc"):
            element.text = None
        element.tail = None
    return ElementTree.tostring(root, encoding="unicode")
