"""Launches that share a tuning result, and so one choice among their candidates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ssd_aot.engines.tracing import TracedLaunch
from ssd_aot.errors import SpecError
from ssd_aot.launches import Configuration
from ssd_aot.spec import Spec
from ssd_aot.targets import Target
from ssd_aot.triton_compat import TuningResult
from ssd_aot.tuning.choices import Choice, Chooser


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

    def choose(self, spec: Spec, target: Target, chooser: Chooser) -> tuple[Choice, ...]:
        """The choice first, then the other candidates in order, each as the default it would be.

        Raises SpecError for a pin that matches no candidate.
        """
        pin = spec.pinned(self.kernel) or spec.pinned(function_name(self.kernel))
        left = tuple(
            c for c in self.candidates if all(c.to_json().get(k) == v for k, v in pin.items())
        )
        if not left:
            pinned = self.kernel if spec.pinned(self.kernel) else function_name(self.kernel)
            raise SpecError(
                "the pin matches no candidate",
                where=spec.place(f"pin.{pinned}"),
                found=", ".join(f"{name}={value}" for name, value in pin.items()),
                wanted="one of: " + "; ".join(str(c) for c in self.candidates),
                mend="pin values that one candidate has, or drop the pin",
            )
        choices = [
            chooser.choose(traced.captured.launch, target, left, pinned=bool(pin))
            for traced in self.launches
        ]
        first = min(choices, key=lambda choice: choice.tuning.status != "measured")
        rest = [chooser.default(c) for c in left if c != first.configuration]
        return (first, *rest)


def function_name(kernel: str) -> str:
    """`_chunk_scan_fwd_kernel` of "module:_chunk_scan_fwd_kernel"."""
    return kernel.rpartition(":")[2]


def check_pins(spec: Spec, groups: Iterable[TuningGroup]) -> None:
    """Raises SpecError for a pin that names no kernel of the trace."""
    kernels = {group.kernel for group in groups}
    names = sorted({function_name(kernel) for kernel in kernels})
    for kernel, _ in spec.pin:
        if kernel not in kernels and kernel not in names:
            raise SpecError(
                "the pin names no kernel of the plan",
                where=spec.place(f"pin.{kernel}"),
                found=kernel,
                wanted=", ".join(names),
                mend="name one of these kernels",
            )


def tuning_groups(traced: Sequence[TracedLaunch]) -> tuple[TuningGroup, ...]:
    """The groups of a trace, in the order of their first launches."""
    found: dict[tuple[str, str], list[TracedLaunch]] = {}
    for launch in traced:
        captured = launch.captured
        shared = captured.tuning.key if captured.tuning else ""
        key = (captured.launch.kernel, shared or captured.launch.identity)
        found.setdefault(key, []).append(launch)
    return tuple(TuningGroup(tuple(launches)) for launches in found.values())
