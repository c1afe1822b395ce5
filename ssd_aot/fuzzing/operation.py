"""An engine's operation under the fuzzer: what reaches Triton while it runs on a drawn batch.

For a process of its own, in which the engine was imported under a stand-in GPU while launches are
captured. Tensors are those of `fuzzing.tensors`, which knows nothing of the planner's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from ssd_aot.bundle.manifest import TargetEntry
from ssd_aot.fuzzing.batch import Batch
from ssd_aot.fuzzing.promises import Deployment
from ssd_aot.launches import Launch
from ssd_aot.triton_compat import CapturedLaunch

MIXER: Mapping[str, Any] = {
    "D": "head", "z": False, "dt_bias": True, "dt_softplus": True, "seq_idx": False,
    "layout": "engine",
}  # fmt: skip
"""What the mixers of serving engines pass always; with anything else they serve no deployment."""

SERVING = "serving"
"""The name of the plainest call of a mixer."""


class OperationLaunchCode(ABC):
    """`captured` is told of each launch while `launches` runs the operation."""

    def __init__(self) -> None:
        self._seen: dict[CapturedLaunch, None] = {}

    def captured(self, launch: CapturedLaunch) -> None:
        self._seen[launch] = None

    @abstractmethod
    def served(self, deployment: Deployment) -> Deployment | None:
        """See `LaunchCode`."""

    @abstractmethod
    def calls(self, deployment: Deployment) -> Sequence[str]:
        """See `LaunchCode`."""

    @abstractmethod
    def run(self, batch: Batch) -> None:
        """Call the operation as the engine calls it for the batch."""

    def launches(self, batch: Batch, target: TargetEntry) -> Sequence[Launch]:
        self._seen.clear()
        self.run(batch)
        return [found.launch for found in self._seen]


def is_mixers(deployment: Deployment) -> bool:
    """Whether a mixer passes what MIXER says, and dt as it slices it out of the projection."""
    axes = deployment.axes
    own = all(axes[name] == value for name, value in MIXER.items())
    return own and axes["dt_dtype"] == axes["dtype"]
