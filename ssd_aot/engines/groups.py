"""Launches that share a tuning result, and so one choice among their candidates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ssd_aot.engines.tracing import TracedLaunch
from ssd_aot.launches import Configuration
from ssd_aot.pins import check_pins, pinned_candidates
from ssd_aot.spec import Spec
from ssd_aot.targets import Target
from ssd_aot.triton_compat import TuningResult
from ssd_aot.tuning.choices import Choice, Chooser
from ssd_aot.tuning.records import tuning_identity


@dataclass(frozen=True)
class TuningGroup:
    """Launches of one kernel that an autotuner tells apart by nothing: argument classes, which
    decide a compilation, do not enter its key. A launch that is not tuned is a group of its own."""

    launches: tuple[TracedLaunch, ...]

    @property
    def kernel(self) -> str:
        """The kernel as "module:function"."""
        return self.launches[0].captured.launch.kernel

    @property
    def tuning(self) -> TuningResult | None:
        return self.launches[0].captured.tuning

    @property
    def tuned_at_serve(self) -> bool:
        """Whether the tuner measures each time, having no way to store what it found."""
        return self.tuning is not None and not self.tuning.key

    @property
    def candidates(self) -> tuple[Configuration, ...]:
        return tuple(c.configuration for c in self.launches[0].captured.candidates)

    @property
    def identity(self) -> str:
        """That of its kernel and tuning key in records; empty where Triton stores no choice."""
        tuning = self.tuning
        return tuning_identity(self.kernel, tuning.tuning_key) if tuning and tuning.key else ""

    def __str__(self) -> str:
        """The kernel and its tuning key, as records spell it."""
        return f"{self.kernel}{self.tuning.tuning_key if self.tuning else ''}"

    def choose(self, spec: Spec, target: Target, chooser: Chooser) -> tuple[Choice, ...]:
        """The choice first, then the other candidates in order, each as the default it would be.

        Raises SpecError for a pin that matches no candidate.
        """
        name = self.kernel if spec.pinned(self.kernel) else function_name(self.kernel)
        left = pinned_candidates(spec, name, self.candidates)
        pinned = bool(spec.pinned(name))
        first = chooser.choose_by(self.identity, self.kernel, target, left, pinned=pinned)
        rest = [chooser.default(c) for c in left if c != first.configuration]
        return (first, *rest)


def function_name(kernel: str) -> str:
    """`_chunk_scan_fwd_kernel` of "module:_chunk_scan_fwd_kernel"."""
    return kernel.rpartition(":")[2]


def check_group_pins(spec: Spec, groups: Iterable[TuningGroup]) -> None:
    """Raises SpecError for a pin that names no kernel of the trace, whole or by its function."""
    kernels = {group.kernel for group in groups}
    check_pins(spec, {function_name(kernel) for kernel in kernels}, kernels)


def tuning_groups(traced: Sequence[TracedLaunch]) -> tuple[TuningGroup, ...]:
    """The groups of a trace, in the order of their first launches."""
    found: dict[tuple[str, str], list[TracedLaunch]] = {}
    for launch in traced:
        captured = launch.captured
        shared = captured.tuning.key if captured.tuning else ""
        key = (captured.launch.kernel, shared or captured.launch.identity)
        found.setdefault(key, []).append(launch)
    return tuple(TuningGroup(tuple(launches)) for launches in found.values())
