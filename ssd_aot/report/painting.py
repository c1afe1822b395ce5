"""Figures on their way into the page: both widths of each, under names of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from markupsafe import Markup
from matplotlib.figure import Figure

from ssd_aot.report.svg import NARROW, WIDE, Styles, inline_svg


@dataclass(frozen=True)
class Drawing:
    """A figure at both widths, of which the style sheet shows one, and what it shows in words."""

    title: str
    description: str
    wide: Markup
    narrow: Markup


class Painter:
    """Draws the figures of one page, so that their styles and names are the page's."""

    def __init__(self) -> None:
        self.styles = Styles()
        self._count = 0

    def both(self, draw: Callable[[int], Figure], title: str, description: str) -> Drawing:
        """What `draw` makes of either width."""
        wide, narrow = (self._inline(draw(width), title, description) for width in (WIDE, NARROW))
        return Drawing(title, description, wide, narrow)

    def small(self, figure: Figure, title: str) -> Markup:
        """A mark of a legend."""
        return self._inline(figure, title, "")

    def _inline(self, figure: Figure, title: str, description: str) -> Markup:
        self._count += 1
        key = f"f{self._count}"
        # Every text in it was escaped when the SVG was written.
        return Markup(
            inline_svg(figure, self.styles, key=key, title=title, description=description)
        )
