"""Why a bundle does not serve a launch: the nearest entry, what differs, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ssd_aot.bundle.store import Bundle
from ssd_aot.errors import UsageError
from ssd_aot.launches import Launch
from ssd_aot.recording.recorded import RecordedLaunch, Recording
from ssd_aot.runtime.asked import MARK, Asked
from ssd_aot.runtime.nearest import Difference, Nearest, nearest

_IN_THE_IMAGE = "build the bundle in the image that serves it"
_FROM_THESE_SOURCES = "build the bundle anew from the sources that serve now"
_Advice = Callable[[Difference], str]

_ADVICE: dict[str, _Advice] = {
    "architecture": lambda d: f"build a bundle for this GPU as well: it is {d.found}",
    "Triton": lambda d: f"{_IN_THE_IMAGE}, with its Triton {d.found}",
    "ptxas": lambda d: f"{_IN_THE_IMAGE}, with its {d.found}",
    "Python": lambda d: f"{_IN_THE_IMAGE}, with its Python ({d.found})",
    "platform": lambda d: f"{_IN_THE_IMAGE}, on {d.found}",
    "environment variable": lambda d: (
        f"unset {d.name} where the program serves, or build with {d.name}={d.found}"
        if d.held == "unset"
        else f"set {d.name}={d.held} where the program serves, or build with it {d.found}"
    ),
    "source text": lambda d: _FROM_THESE_SOURCES,
    "source line": lambda d: f"{_FROM_THESE_SOURCES}: Triton counts the line of a kernel as well",
    "source of what it calls, or a constant": lambda d: _FROM_THESE_SOURCES,
    "argument class": lambda d: (
        f"build with a spec, or a recording, in which {d.name} comes as {d.found}"
    ),
    "argument type": lambda d: (
        f"build with a spec, or a recording, in which {d.name} comes as {d.found}"
    ),
    "constexpr": lambda d: f"build with a spec, or a recording, in which {d.name} is {d.found}",
    "option": lambda d: (
        f"build with the configuration that the program launches with, {d.name}={d.found}: "
        "pin it, or record the program"
    ),
    "tuning key": lambda d: f"build with a spec, or a recording, that is tuned for {d.found}",
    "candidates": lambda d: (
        "build the bundle anew with the release that serves: it chooses among other candidates"
    ),
}
_NOTHING_OF_IT = (
    "record the program (ssd-aot record) and build from the recording: the bundle's own spec does "
    "not reach this kernel"
)
_NOTHING_DIFFERS = (
    "load the bundle in this process before the launch (SSD_AOT_BUNDLE, or ssd_aot.load), and see "
    "ssd_aot.status(): it holds this launch"
)


@dataclass(frozen=True)
class Explanation:
    """Of one launch or tuning that was asked for."""

    asked: Asked
    nearest: Nearest

    @property
    def held(self) -> bool:
        """Whether the bundle has it."""
        return bool(self.nearest.entry) and not self.nearest.differences

    @property
    def advice(self) -> str:
        """One sentence of what to do, about the first component that differs."""
        if not self.nearest.entry:
            return _NOTHING_OF_IT
        if not self.nearest.differences:
            return _NOTHING_DIFFERS
        first = self.nearest.differences[0]
        return _ADVICE[first.component](first)

    def lines(self) -> list[str]:
        asked = self.asked
        lines = [f"{asked.kind} of {asked.kernel}" + (f" [{asked.key[:12]}]" if asked.key else "")]
        lines.append(f"  nearest: {self.nearest.entry or 'nothing of this kernel'}")
        for one in self.nearest.differences:
            what = f"{one.component} {one.name}".strip()
            lines += [f"  differs: {what}", f"    asked: {one.found}", f"    held:  {one.held}"]
        lines.append(f"  mend:    {self.advice}")
        return lines

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": self.asked.kind,
            "kernel": self.asked.kernel,
            "key": self.asked.key,
            "held": self.held,
            "nearest": self.nearest.entry,
            "differences": [vars(one) for one in self.nearest.differences],
            "mend": self.advice,
        }


def explain(bundle: Bundle, asked: Asked) -> Explanation:
    """Why the bundle does or does not serve what was asked for."""
    return Explanation(asked, nearest(bundle, asked))


def asked_in(text: str, where: str) -> tuple[Asked, ...]:
    """What the lines of the guard in a text ask for; a log's other lines are passed over.

    Raises UsageError where there is none, or one that was cut.
    """
    marked = f'"ssd_aot": "{MARK}"'
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if marked in line]
    if not lines:
        raise UsageError(
            "no line of the guard's",
            where=where,
            found=f"{len(text.splitlines())} other lines",
            wanted=f"a line of JSON with {marked}",
            mend="give what a process with a bundle in service wrote for a miss",
        )
    found = (Asked.from_line(line, f"{where}:{number}") for number, line in lines)
    return tuple(dict.fromkeys(found))


@dataclass(frozen=True)
class Coverage:
    """A recording held against a bundle: of `launches` those that are not `missing` are there;
    `outside` are kernels of the program of which the bundle holds nothing."""

    launches: int
    missing: tuple[Explanation, ...]
    outside: tuple[str, ...]

    def lines(self) -> list[str]:
        lines = [line for one in self.missing for line in one.lines()]
        lines.append(
            f"{self.launches - len(self.missing)} of {self.launches} recorded launches are held"
        )
        if self.outside:
            lines.append("kernels of the program outside the bundle:")
            lines += [f"  {name}" for name in self.outside]
        return lines

    def to_json(self) -> dict[str, Any]:
        return {
            "launches": self.launches,
            "missing": [one.to_json() for one in self.missing],
            "kernels_outside": list(self.outside),
        }


def explain_recording(bundle: Bundle, recording: Recording) -> Coverage:
    """Which recorded launches the bundle holds, with whatever configuration, and why not others."""
    manifest = bundle.manifest
    kernels = {entry.launch.kernel for entry in manifest.variants}
    full = {
        _full(entry.launch, entry.configuration.constexprs): entry for entry in manifest.variants
    }
    missing = []
    for one in recording.launches:
        if one.launch.kernel not in kernels:
            continue
        asked = [_asked(one, place, recording) for place in range(len(one.candidates))]
        if not any(_full(a.launch, ()) in full for a in asked if a.launch is not None):
            missing.append(min((explain(bundle, a) for a in asked), key=_distance))
    inside = sum(one.launch.kernel in kernels for one in recording.launches)
    return Coverage(inside, tuple(missing), tuple(sorted(recording.names - kernels)))


def _distance(explanation: Explanation) -> int:
    return len(explanation.nearest.differences)


def _full(launch: Launch, chosen: Iterable[tuple[str, Any]]) -> tuple[Any, ...]:
    """A launch with what its candidate chose among the constexprs, in one order."""
    constexprs = {**dict(launch.constexprs), **dict(chosen)}
    return launch.kernel, tuple(sorted(constexprs.items())), launch.arguments, launch.options


def _asked(one: RecordedLaunch, place: int, recording: Recording) -> Asked:
    _, configuration = one.candidates[place]
    launch = one.launch
    constexprs: Sequence[tuple[str, Any]] = (*launch.constexprs, *configuration.constexprs)
    kernel = dict(recording.kernels)[launch.kernel]
    return Asked(
        "compilation",
        launch.kernel,
        "",
        Launch(launch.kernel, tuple(constexprs), launch.arguments, launch.options),
        configuration,
        kernel.source_sha256,
        kernel.text,
    )
