"""What an engine is to the planner: how it is imported for a GPU, and how it calls the scan."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ssd_aot.errors import HostError, UsageError
from ssd_aot.signatures import Signature
from ssd_aot.targets import Target

if TYPE_CHECKING:
    from ssd_aot.engines.serving_calls import PreparedCall, ServingBatch
    from ssd_aot.problems import Problem

Call = Callable[[], object]
"""One call of the engine's own operation on tensors without memory."""

ENGINES = ("vllm", "sglang", "mamba_ssm", "tensorrt_llm")


@runtime_checkable
class Engine(Protocol):
    """One module of `engines` each: `ssd_aot.engines.NAME`."""

    name: str
    package: str
    """The distribution it is installed from."""

    def imported(self, target: Target) -> AbstractContextManager[None]:
        """The engine with its operation imported as on a `target`, until the end of the block.

        Entered inside `presenting.presented`. Raises HostError where the engine shows that it did
        not take the stand-in for a GPU.
        """
        ...

    def refusal(self, signature: Signature) -> str:
        """Why the engine never makes such a call; empty for one that it makes."""
        ...

    def calls(self, signature: Signature) -> Iterator[Call]:
        """The calls that serving can reach under a signature, thinned to those whose arguments
        can differ in type or class."""
        ...

    def adopt(self) -> bool:
        """Let `prepare` call the operation as this process has imported it; False where it has not,
        or is importing it still."""
        ...

    def prepare(self, batch: ServingBatch, problem: Problem) -> PreparedCall:
        """The call that a layer makes for a batch, whose problem that is; inside `imported`, or
        once `adopt` was true."""
        ...


def engine(name: str) -> Engine:
    """The engine of that name. Raises UsageError for one that is not known."""
    if name not in ENGINES:
        near = difflib.get_close_matches(name.lower(), ENGINES, n=1)
        raise UsageError("unknown engine", where="source", found=name, wanted=", ".join(ENGINES),
                         mend=f"write {near[0]}" if near else "")  # fmt: skip
    module = importlib.import_module(f"ssd_aot.engines.{name}")
    found: Engine = module.ENGINE
    return found


def installed_version(package: str) -> str | None:
    """The version of an installed distribution, without importing it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def require_installed(name: str, where: str) -> str:
    """The engine's version. Raises HostError where it is not installed beside ssd-aot."""
    package = engine(name).package
    version = installed_version(package)
    if version is None:
        raise HostError(
            "the engine whose kernels are to be built is not installed here",
            where=where,
            found=f"no package {package}",
            wanted=f"{package} in this Python environment, as the image has it",
            mend="install ssd-aot into the image's own environment and build there, "
            "or build the builtin kernels (--source builtin)",
        )
    return version
