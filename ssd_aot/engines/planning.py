"""The plan of an engine's kernels, for `plan` and `verify`: traced anew, nothing compiled."""

from __future__ import annotations

from collections.abc import Sequence

from ssd_aot.engines.engine import require_installed
from ssd_aot.engines.groups import check_group_pins, tuning_groups
from ssd_aot.engines.process import EngineProcess
from ssd_aot.engines.reaching import reached_signatures
from ssd_aot.launches import Launch
from ssd_aot.plan import Plan, PlannedLaunch
from ssd_aot.spec import Spec
from ssd_aot.targets import Target
from ssd_aot.triton_compat import toolchain
from ssd_aot.tuning.choices import Chooser


def plan_engine(spec: Spec, targets: Sequence[Target]) -> Plan:
    """Every launch of the spec's engine on every target, each with its candidates in order.

    Raises HostError where the engine is not installed, SpecError for signatures that it does not
    serve and for pins that match no candidate.
    """
    recording = spec.recording
    if recording is None:
        require_installed(spec.source, spec.place("source"))
    signatures = () if recording else reached_signatures(spec)
    launches: list[PlannedLaunch] = []
    sources: dict[str, str] = {}
    for target in targets:
        with EngineProcess(spec.source, target) as process:
            traced = process.trace_recording(recording) if recording else process.trace(signatures)
        sources.update({t.captured.launch.kernel: t.captured.source_sha256 for t in traced})
        by_default = Chooser((), toolchain(), ())
        found: dict[Launch, PlannedLaunch] = {}
        groups = tuning_groups(traced)
        check_group_pins(spec, groups)
        for group in groups:
            choices = group.choose(spec, target, by_default)
            configurations = tuple(choice.configuration for choice in choices)
            for one in group.launches:
                launch = one.captured.launch
                known = found.get(launch)
                ids = {*one.signatures, *(known.signatures if known else ())}
                found[launch] = PlannedLaunch(launch, target, configurations, tuple(sorted(ids)))
        launches += [found[launch] for launch in sorted(found, key=str)]
    return Plan(signatures, tuple(launches), tuple(sorted(sources.items())))
