"""The pin: exactly the bundle with this digest, or none."""

from __future__ import annotations

import os
import re

from ssd_aot.errors import MismatchError, UsageError

VARIABLE = "SSD_AOT_DIGEST"
"""Pins every bundle that a process loads, verifies or unpacks, for images whose program one does
not change."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


def pinned_digest(given: str | None, where: str) -> str | None:
    """The digest to insist on: `given` at `where`, or the environment's, or None for any bundle.

    Raises UsageError for what is no digest and where the two differ. A variable that is set and
    empty is no digest either: most likely something that should have filled it did not.
    """
    variable = os.environ.get(VARIABLE)
    for place, digest in ((where, given), (VARIABLE, variable)):
        if digest is not None and not _DIGEST.fullmatch(digest):
            raise UsageError(
                "not a bundle's digest",
                where=place,
                found=repr(digest),
                wanted="64 lower-case hexadecimal digits, as `ssd-aot verify` prints them",
                mend="copy them from there, or leave the pin out",
            )
    if given is not None and variable is not None and given != variable:
        raise UsageError(
            "two different digests are pinned",
            where=where,
            found=given,
            wanted=f"{variable}, as {VARIABLE} has it",
            mend=f"give one of them, or unset {VARIABLE}",
        )
    return given if given is not None else variable


def refuse_other(found: str, pinned: str | None, where: str) -> None:
    """Raises MismatchError where a pin is given and `found`, the digest at `where`, is another."""
    if pinned is not None and found != pinned:
        raise MismatchError(
            "another bundle than the one pinned",
            where=where,
            found=found,
            wanted=pinned,
            mend="ship the pinned bundle, or pin this one",
        )
