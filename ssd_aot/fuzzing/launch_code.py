"""What a source gives the fuzzer: its own launch code, run on a drawn batch without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ssd_aot.bundle.manifest import TargetEntry
from ssd_aot.fuzzing.batch import Batch
from ssd_aot.fuzzing.promises import Deployment
from ssd_aot.launches import Launch


class LaunchCode(Protocol):
    """A source under the fuzzer. Keeps nothing between two batches that changes an answer."""

    def served(self, deployment: Deployment) -> Deployment | None:
        """The deployment with the reaches that the source serves; None where it serves none."""
        ...

    def calls(self, deployment: Deployment) -> Sequence[str]:
        """The ways in which a program can call the source for a deployment that it serves, the
        plainest first; each batch carries one of them."""
        ...

    def launches(self, batch: Batch, target: TargetEntry) -> Sequence[Launch]:
        """The launches that the source's launch code issues for a batch on a target, in order."""
        ...


def launch_code(source: str) -> LaunchCode | None:
    """A source's launch code, None where this release has none for it."""
    if source != "builtin":
        return None
    from ssd_aot.fuzzing.builtin import BuiltinLaunchCode

    return BuiltinLaunchCode()
