"""What was examined, one item after the other, and what each purpose lacks."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

Purpose = Literal["build", "tune", "serve"]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)
WIDTH = 80


@dataclass(frozen=True)
class Item:
    """One thing that was examined. `lacking` is there and wrong, or not there; `note` is worth
    knowing and stops nothing; `purposes` are those that a lack stops."""

    status: Literal["ok", "lacking", "note"]
    name: str
    what: str
    found: str = ""
    wanted: str = ""
    mend: str = ""
    purposes: tuple[Purpose, ...] = ()

    def lines(self) -> Iterator[str]:
        """The item as a terminal shows it, in lines of at most `WIDTH` columns."""
        yield from _wrapped(f"{self.status:<9}", f"{self.name}: {self.what}")
        stops = ", ".join(self.purposes) if self.status == "lacking" else ""
        for label, value in (
            ("found", self.found), ("wanted", self.wanted), ("mend", self.mend), ("stops", stops),
        ):  # fmt: skip
            if value:
                yield from _wrapped(f"  {label + ':':<8}", value)


@dataclass(frozen=True)
class Diagnosis:
    """All that was examined, in the order it is shown."""

    items: tuple[Item, ...]

    def lacks(self, purpose: Purpose) -> tuple[Item, ...]:
        """What stops that purpose on this host; nothing where it can go on."""
        return tuple(
            item for item in self.items if item.status == "lacking" and purpose in item.purposes
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "purposes": {
                purpose: {
                    "ready": not self.lacks(purpose),
                    "lacks": [item.name for item in self.lacks(purpose)],
                }
                for purpose in PURPOSES
            },
            "items": [asdict(item) for item in self.items],
        }

    def __str__(self) -> str:
        lines = [line for item in self.items for line in item.lines()]
        for purpose in PURPOSES:
            names = ", ".join(dict.fromkeys(item.name for item in self.lacks(purpose)))
            lines += _wrapped(f"{purpose:<9}", f"lacks {names}" if names else "ready")
        return "\n".join(lines)


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(head + text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
