"""What a check found, one finding after the other, for programs and for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Literal, Protocol

from ssd_aot.errors import SsdAotError

WIDTH = 80
SHOWN_ALIKE = 20
"""How many failures of one check a terminal shows; the JSON form has them all."""


@dataclass(frozen=True)
class Finding:
    """The outcome of one check: `check` names it (`files`, `completeness`), `what` says more."""

    status: Literal["ok", "failed", "not checked"]
    check: str
    what: str
    found: str = ""
    wanted: str = ""
    mend: str = ""

    @classmethod
    def of_error(cls, check: str, error: SsdAotError) -> Finding:
        what = f"{error.where}: {error.what}" if error.where else error.what
        return cls("failed", check, what, error.found, error.wanted, error.mend)

    def lines(self) -> Iterator[str]:
        """The finding as a terminal shows it, no line longer than `WIDTH` columns."""
        # Two columns of indent leave room for a path that holds a sha256.
        yield from _wrapped(f"{self.status:<12}", f"{self.check}: {self.what}")
        for label, value in (("found", self.found), ("wanted", self.wanted), ("mend", self.mend)):
            if value:
                yield from _wrapped(f"  {label + ':':<8}", value)


class Supplement(Protocol):
    """More than findings: what a report shows and holds under a name of its own."""

    def to_json(self) -> Any: ...

    def lines(self) -> Iterable[str]: ...


@dataclass(frozen=True)
class Report:
    """All findings about a bundle; `digest` is empty where its manifest could not be read.

    `supplements` go by the name they have in the JSON form.
    """

    bundle: str
    digest: str
    findings: tuple[Finding, ...]
    supplements: tuple[tuple[str, Supplement], ...] = ()

    @property
    def passed(self) -> bool:
        """Whether nothing failed; what was not checked does not count."""
        return not self.failures

    @property
    def failures(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.status == "failed")

    @classmethod
    def refused(cls, bundle: str, error: SsdAotError) -> Report:
        """The report on a bundle that could not even be opened."""
        return cls(bundle, "", (Finding.of_error("manifest", error),))

    def to_json(self) -> dict[str, Any]:
        return {
            "bundle": self.bundle,
            "digest": self.digest,
            "passed": self.passed,
            "findings": [asdict(finding) for finding in self.findings],
            **{name: supplement.to_json() for name, supplement in self.supplements},
        }

    def __str__(self) -> str:
        return self.render()

    def render(self, *, every: bool = False) -> str:
        """For a terminal; with `every`, each failure however many are alike."""
        lines: list[str] = []
        for (status, check), group in groupby(self.findings, lambda f: (f.status, f.check)):
            alike = list(group)
            shown = alike if every else alike[:SHOWN_ALIKE]
            for finding in shown:
                lines += finding.lines()
            more = len(alike) - len(shown)
            if more:
                lines += _wrapped(f"{status:<12}", f"{check}: {more} more, all shown with -v")
        for _, supplement in self.supplements:
            lines += supplement.lines()
        failed = len(self.failures)
        outcome = "verified" if self.passed else f"NOT verified: {failed} failed"
        lines += _wrapped("", f"{self.bundle}: {outcome}")
        if self.digest:
            lines.append(f"digest {self.digest}")
        return "\n".join(lines)


def _wrapped(head: str, text: str) -> list[str]:
    # Not as an initial indent: a path that fits the second line would be broken for the first.
    return textwrap.wrap(head + text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
