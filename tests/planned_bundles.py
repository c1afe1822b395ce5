"""Bundles that hold a spec's whole plan, without compiling: code objects in form alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from bundle_builders import H200, TOOLCHAIN, variant, write_bundle
from cubin_builders import fake_cubin

from ssd_aot.bundle.manifest import Manifest, Source, TargetEntry, Tuning
from ssd_aot.bundle.store import Bundle
from ssd_aot.fuzzing.fuzzer import Held
from ssd_aot.launches import Launch
from ssd_aot.layouts import FormRule
from ssd_aot.operation import launch_abi
from ssd_aot.plan import Plan, make_plan
from ssd_aot.spec import Spec
from ssd_aot.targets import target


def plan_of(spec: Spec, entry: TargetEntry = H200) -> Plan:
    """The spec's plan for one target, by the form rule of its manifest entry."""
    rule = FormRule(entry.walk_programs, entry.walk_tokens)
    return make_plan(spec, [target(entry.name)], {entry.name: rule})


def held_by(plan: Plan, entry: TargetEntry = H200) -> Held:
    return Held(entry, tuple(planned.launch for planned in plan.launches))


def identities(plan: Plan) -> frozenset[tuple[str, str]]:
    return frozenset((p.target.name, p.launch.identity) for p in plan.launches)


def planned_bundle(
    path: Path,
    spec: Spec,
    *,
    left_out: Callable[[Launch], bool] = lambda launch: False,
    tuning: Mapping[str, Tuning] | None = None,
    missing: tuple[str, ...] = (),
) -> Bundle:
    """A bundle for an H200 with every launch of the plan but those `left_out`, which the manifest
    does not know either; `tuning` by kernel, else default."""
    plan = plan_of(replace(spec, source="builtin"))
    entries, contents = [], {}
    for number, planned in enumerate(plan.launches):
        if left_out(planned.launch):
            continue
        arguments = tuple((a.name, a.type) for a in planned.launch.arguments if a.type != "none")
        data = fake_cubin(
            90, str(number).encode(), suffix=True, parameters=[kind for _, kind in arguments]
        )
        entry = variant(
            data,
            target=H200,
            launch=planned.launch,
            signatures=planned.signatures,
            tuning=(tuning or {}).get(planned.launch.kernel, Tuning("default")),
            parameters=arguments,
        )
        entries.append(entry)
        contents[entry.object.path] = data
    made = Manifest(
        spec=spec.normalised(),
        spec_digest=spec.digest,
        signatures=tuple((s.id, s.to_json()) for s in plan.signatures),
        source=Source(spec.source, "0.1.0", (("scan", "a" * 64),)),
        launch_abi=launch_abi(),
        toolchain=TOOLCHAIN,
        targets=(H200,),
        variants=tuple(entries),
        missing=missing,
        files=tuple(
            sorted({(e.object.path, e.object.sha256, e.object.size_bytes) for e in entries})
        ),
    )
    return write_bundle(path, made, contents)
