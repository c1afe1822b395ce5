"""Fuzzing: batch after batch through a source's launch code, each launch looked up."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ssd_aot.bundle.manifest import Manifest, TargetEntry
from ssd_aot.errors import SpecError
from ssd_aot.fuzzing.batch import Batch
from ssd_aot.fuzzing.drawing import Drawer
from ssd_aot.fuzzing.launch_code import LaunchCode
from ssd_aot.fuzzing.misses import Miss
from ssd_aot.fuzzing.promises import Deployment, deployments
from ssd_aot.fuzzing.shrinking import shrink
from ssd_aot.launches import Launch
from ssd_aot.progress import Progress
from ssd_aot.runtime.missing import nearest_difference
from ssd_aot.spec import Spec
from ssd_aot.verification.findings import Finding

TOLD = 256
"""Batches between two words on progress."""

EXPLAINED = 20
"""Missing launches whose smallest batch is searched for; more are counted."""


@dataclass(frozen=True)
class Held:
    """The launches that are there for one target."""

    target: TargetEntry
    launches: tuple[Launch, ...]


@dataclass(frozen=True)
class FuzzReport:
    """What `batches` batches of one seed asked for. `cpu_s` is this process's time for drawing and
    looking up; `asked` of the `held` launches of all targets came up, and `missing` others, of
    which `misses` are explained."""

    batches: int
    seed: int
    cpu_s: float
    held: int
    asked: int
    missing: int
    misses: tuple[Miss, ...]

    @property
    def rate(self) -> float:
        """Batches a second of one core."""
        return self.batches / self.cpu_s if self.cpu_s else 0.0

    def findings(self) -> tuple[Finding, ...]:
        """What was done, and a failure for each miss."""
        others = "1 other" if self.missing == 1 else f"{self.missing or 'no'} others"
        what = (
            f"{self.batches} random batches of seed {self.seed} asked for {self.asked} of the "
            f"{self.held} launches and for {others}, "
            f"{self.rate:.0f} batches a second on one core"
        )
        untold = self.missing - len(self.misses)
        return (
            Finding("failed" if self.missing else "ok", "fuzz", what),
            *(miss.finding() for miss in self.misses),
            *([Finding("failed", "fuzz", f"{untold} more, not searched for")] if untold else []),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "batches": self.batches,
            "seed": self.seed,
            "batches_per_second": round(self.rate, 1),
            "held": self.held,
            "asked": self.asked,
            "missing": self.missing,
            "misses": [miss.to_json() for miss in self.misses],
        }

    def lines(self) -> tuple[str, ...]:
        """Nothing that the findings do not say."""
        return ()


def held(manifest: Manifest) -> tuple[Held, ...]:
    """What a bundle holds, by target."""
    return tuple(
        Held(target, tuple(e.launch for e in manifest.variants if e.target == target.name))
        for target in manifest.targets
    )


@dataclass
class _Sighting:
    """A missing launch: the batch that asked for it first, and how many did."""

    launch: Launch
    batch: Batch
    first: int
    batches: int = 0


def fuzz(
    spec: Spec,
    code: LaunchCode,
    there: Sequence[Held],
    *,
    batches: int,
    seed: int,
    planned: Collection[tuple[str, str]] = (),
    on_progress: Callable[[Progress], None] | None = None,
) -> FuzzReport:
    """Draw so many batches that `spec` promises and look up each launch that they ask for.

    `planned` holds (target, launch identity) of the spec's plan, to tell a bundle's gap from the
    planner's. Raises SpecError where the spec promises no batch at all.
    """
    promised = tuple(filter(None, map(code.served, deployments(spec))))
    if not promised:
        raise SpecError(
            "nothing of the spec is served, so that no batch can be drawn",
            where=spec.place("matrix"),
            found=f"no deployment that {spec.source} makes",
            wanted="signatures that it serves",
            mend="change the axes in the matrix",
        )
    known = [(h.target, frozenset(launch.identity for launch in h.launches)) for h in there]
    asked: set[tuple[str, str]] = set()
    missing: dict[tuple[str, str], _Sighting] = {}
    started, cpu = time.monotonic(), time.process_time()
    for number, batch in enumerate(islice(Drawer(promised, code, seed), batches)):
        for target, identities in known:
            lacked: dict[str, Launch] = {}
            for launch in code.launches(batch, target):
                if launch.identity in identities:
                    asked.add((target.name, launch.identity))
                else:
                    lacked[launch.identity] = launch
            for identity, launch in lacked.items():
                key = target.name, identity
                missing.setdefault(key, _Sighting(launch, batch, number)).batches += 1
        if on_progress and ((number + 1) % TOLD == 0 or number + 1 == batches):
            elapsed = time.monotonic() - started
            left = elapsed / (number + 1) * (batches - number - 1)
            on_progress(Progress(number + 1, batches, len(missing), elapsed, left, verb="drew"))
    cpu = time.process_time() - cpu
    targets = {h.target.name: h for h in there}
    misses = [
        _explained(targets[name], sighting, promised, code, (name, identity) in planned)
        for (name, identity), sighting in list(missing.items())[:EXPLAINED]
    ]
    return FuzzReport(
        batches=batches,
        seed=seed,
        cpu_s=cpu,
        held=sum(len(identities) for _, identities in known),
        asked=len(asked),
        missing=len(missing),
        misses=tuple(misses),
    )


def _explained(
    there: Held,
    sighting: _Sighting,
    promised: Sequence[Deployment],
    code: LaunchCode,
    planned: bool,
) -> Miss:
    launch = sighting.launch

    def asks(batch: Batch) -> bool:
        issued = code.launches(batch, there.target)
        return any(found.identity == launch.identity for found in issued)

    return Miss(
        target=there.target.name,
        launch=launch,
        example=shrink(sighting.batch, asks, promised, code),
        first=sighting.first,
        batches=sighting.batches,
        planned=planned,
        nearest=nearest_difference(there.launches, launch),
    )
