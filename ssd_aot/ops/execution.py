"""What carries a scan out: the loaded bundle, or whoever asks to be handed the calls instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

from torch import Tensor

from ssd_aot.errors import UsageError
from ssd_aot.layouts import Blocking, Counts, ScanLayout


class Executor(Protocol):
    """Runs or records one scan. `blocking` and the tensors' layout decide the kernels."""

    blocking: Blocking

    def run(self, tensors: Mapping[str, Tensor], layout: ScanLayout, counts: Counts) -> None: ...


@runtime_checkable
class Recalling(Protocol):
    """An executor that can skip the checks for calls like one that it has run."""

    def remember(
        self,
        given: tuple[Tensor | None, ...],
        layout: ScanLayout,
        chunk_size: int,
        dt_softplus: bool,
        dt_limit: tuple[float, float],
    ) -> None: ...


_substitutes: list[Executor] = []
_in_service: Executor | None = None


def serve(executor: Executor) -> None:
    """Hand every scan from now on to `executor`: what `ssd_aot.load` does with a bundle."""
    global _in_service
    _in_service = executor


@contextmanager
def executing(executor: Executor) -> Iterator[None]:
    """Hand every scan inside the block to `executor`: how tracing and the tests see the calls."""
    _substitutes.append(executor)
    try:
        yield
    finally:
        _substitutes.remove(executor)


def substituted() -> bool:
    """Whether some `executing` block stands in for the loaded bundle."""
    return bool(_substitutes)


def current_executor() -> Executor:
    """The innermost substitute, else the bundle loaded in this process.

    Raises `UsageError` when neither is there.
    """
    if _substitutes:
        return _substitutes[-1]
    if _in_service is None:
        raise UsageError(
            "no bundle is loaded in this process",
            where="ssd_aot.ops",
            found="no call of ssd_aot.load",
            wanted="a loaded bundle",
            mend='call ssd_aot.load("dist/NAME") once after the device is set',
        )
    return _in_service
