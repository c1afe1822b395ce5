"""What every bundle must be before anything in it is used: the pinned one, complete, unchanged."""

from __future__ import annotations

import os

from ssd_aot.bundle.pin import pinned_digest, refuse_other
from ssd_aot.bundle.store import Bundle
from ssd_aot.errors import BundleError
from ssd_aot.runtime.local_copy import local_copy, open_patiently


def accept(
    path: str | os.PathLike[str], digest: str | None = None, *, allow_incomplete: bool = False
) -> Bundle:
    """The bundle at `path`, pinned by `digest` or SSD_AOT_DIGEST, as its copy on this host where
    one is wanted (see `local_copy`); else its files are not read yet.

    Raises UsageError for a pin that is none, MismatchError for another bundle than the pinned one,
    BundleError for one that is not whole.
    """
    pinned = pinned_digest(digest, "load(digest=…)")
    bundle = open_patiently(path)
    refuse_other(bundle.digest, pinned, str(path))
    missing = bundle.manifest.missing
    if missing and not allow_incomplete:
        raise BundleError(
            "the bundle is incomplete",
            where=str(path),
            found="missing " + ", ".join(missing),
            wanted="every launch of its plan",
            mend="rebuild it, or load(allow_incomplete=True)",
        )
    return local_copy(bundle)


def refuse_changed(bundle: Bundle) -> None:
    """Raises BundleError unless every file is as it was written."""
    problems = bundle.check_files()
    if problems:
        raise BundleError(
            f"the bundle was changed or is not whole ({len(problems)} problems)",
            where=str(bundle.path),
            found=str(problems[0]),
            wanted="the files its manifest lists, unchanged",
            mend="ship it again, and see `ssd-aot verify`",
        )
