"""Signatures times source: the launches a bundle must hold, each with its reasons."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ssd_aot.bundle.choosing import BUILTIN
from ssd_aot.candidates import candidates
from ssd_aot.launches import Configuration, Launch
from ssd_aot.layouts import FormRule
from ssd_aot.pins import check_pins, pinned_candidates
from ssd_aot.signatures import Signature, expand
from ssd_aot.spec import Spec
from ssd_aot.targets import Target
from ssd_aot.tracing import trace
from ssd_aot.verification.completeness import RequiredLaunch, RequiredPlan


@dataclass(frozen=True)
class PlannedLaunch:
    """A launch required on one target: its candidates, the preferred first, and the ids of the
    signatures that need it."""

    launch: Launch
    target: Target
    candidates: tuple[Configuration, ...]
    signatures: tuple[str, ...]

    def __str__(self) -> str:
        more = len(self.signatures) - 1
        others = f" and {more} more" if more else ""
        return f"{self.launch} on {self.target.name}, needed by {self.signatures[0]}{others}"


@dataclass(frozen=True)
class Plan:
    """What a build has to make. `sources` pairs an engine's kernels with the hashes of their
    sources as they are installed here."""

    signatures: tuple[Signature, ...]
    launches: tuple[PlannedLaunch, ...]
    sources: tuple[tuple[str, str], ...] = ()

    @property
    def variants(self) -> int:
        """Code objects in the bundle: one configuration a launch and target."""
        return len(self.launches)

    def required(self) -> RequiredPlan:
        """What `verify` holds a bundle against."""
        return RequiredPlan(
            launches=tuple(
                RequiredLaunch(planned.launch, planned.signatures, (planned.target.name,))
                for planned in self.launches
            ),
            signatures={signature.id: signature.to_json() for signature in self.signatures},
            sources=self.sources,
        )

    def render(self) -> str:
        """For a terminal: every launch with its key and the signatures that need it."""
        lines = [f"{len(self.signatures)} signatures need {self.variants} variants"]
        for planned in self.launches:
            launch = planned.launch
            values = " ".join(f"{name}={value}" for name, value in launch.constexprs)
            types = ", ".join(
                f"{a.name} {a.spelled()}" for a in launch.arguments if a.type[0] == "*"
            )
            first, more = planned.signatures[0], len(planned.signatures) - 1
            lines += _wrapped("", f"{planned.target.name} {launch.kernel} {values}")
            lines += _wrapped("    ", types)
            lines += _wrapped("    ", f"for {first}" + (f" and {more} more" if more else ""))
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        return {
            "signatures": [{"id": s.id, **s.to_json()} for s in self.signatures],
            "launches": [
                {
                    "target": planned.target.name,
                    "kernel": planned.launch.kernel,
                    "constexprs": dict(planned.launch.constexprs),
                    "arguments": {a.name: a.spelled() for a in planned.launch.arguments},
                    "options": dict(planned.launch.options),
                    "candidates": [c.to_json() for c in planned.candidates],
                    "signatures": list(planned.signatures),
                }
                for planned in self.launches
            ],
            "variants": self.variants,
        }


def _wrapped(indent: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, 80, initial_indent=indent, subsequent_indent="    ", break_on_hyphens=False,
        break_long_words=False,
    )  # fmt: skip


def make_plan(
    spec: Spec, targets: Sequence[Target], rules: Mapping[str, FormRule] | None = None
) -> Plan:
    """Trace every signature of the spec for every target and merge equal launches.

    `rules` say by target name which form of the scan runs, by default `FormRule.for_gpu`.

    Raises `SpecError` for a pin that names no kernel of the plan or matches no candidate, and for
    an engine's source `HostError` where it is not installed.
    """
    if spec.source != BUILTIN:
        # Imported here: a plan of builtin kernels does without Triton.
        from ssd_aot.engines.planning import plan_engine

        return plan_engine(spec, targets)
    signatures = expand(spec)
    launches: list[PlannedLaunch] = []
    for target in targets:
        rule = (rules or {}).get(target.name) or FormRule.for_gpu(target.multiprocessors)
        launches += _plan_target(spec, signatures, target, rule)
    check_pins(spec, {planned.launch.kernel for planned in launches})
    return Plan(signatures, tuple(launches))


def _plan_target(
    spec: Spec, signatures: Sequence[Signature], target: Target, rule: FormRule
) -> list[PlannedLaunch]:
    traced: dict[Signature, tuple[Launch, ...]] = {}
    needed: dict[Launch, list[str]] = {}
    for signature in signatures:
        # Names and the convolution's width reach no launch: models of one geometry share a trace.
        bare = replace(signature, model="", tp=1, conv_kernel=0)
        if bare not in traced:
            traced[bare] = trace(bare, rule)
        for launch in traced[bare]:
            needed.setdefault(launch, []).append(signature.id)
    return [
        PlannedLaunch(
            launch,
            target,
            pinned_candidates(spec, launch.kernel, candidates(launch, target)),
            tuple(ids),
        )
        for launch, ids in sorted(needed.items(), key=lambda item: str(item[0]))
    ]
