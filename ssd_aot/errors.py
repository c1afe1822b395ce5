"""Typed errors. Each says what is wrong, where, what was found, what is wanted, and the mend.

The command line turns an error into its exit code: 1 the answer is no, 2 wrong usage or a bad
spec, 3 something this host lacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(eq=False)
class SsdAotError(Exception):
    """Base of all errors of this package.

    `what` is one sentence; `where` is a file with line, a field, or a name; `found` and `wanted`
    are the two values that disagree; `mend` says what to do. Empty parts are left out when printed.
    `more` is what was found beside the first that `found` shows; a verbose command shows it too.
    """

    what: str
    where: str = ""
    found: str = ""
    wanted: str = ""
    mend: str = ""
    more: tuple[str, ...] = ()

    exit_code: ClassVar[int] = 1

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        parts = [head]
        if self.found:
            parts.append(f"  found:  {self.found}")
        if self.wanted:
            parts.append(f"  wanted: {self.wanted}")
        if self.mend:
            parts.append(f"  mend:   {self.mend}")
        return "\n".join(parts)


SHOWN = 5
"""How many of several a message spells out; the others mostly share their reasons."""


def listed(found: Sequence[str], shown: int = SHOWN) -> str:
    """The first of several as an error's `found`, a line each, and how many more there are."""
    more = len(found) - shown
    return "\n          ".join([*found[:shown], *([f"and {more} more"] if more > 0 else [])])


class SpecError(SsdAotError):
    """A spec, a model config or a selection that cannot be used."""

    exit_code = 2


class UsageError(SsdAotError):
    """Wrong usage of a command or of a public function."""

    exit_code = 2


class HostError(SsdAotError):
    """Something this host lacks: a GPU, a ptxas that knows the architecture, disk space."""

    exit_code = 3


class BuildError(SsdAotError):
    """A required variant could not be built, or another build holds the output."""


class BundleError(SsdAotError):
    """A bundle that is not whole, was changed, or cannot be read."""


class MismatchError(BundleError):
    """A bundle that is whole but not for this device, host or launch interface."""


class MissingLaunchError(SsdAotError):
    """A launch that the loaded bundle lacks."""
