"""What an engine build made, as a bundle: code, metadata, tuning results, host modules."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ssd_aot.bundle.manifest import (
    KernelText,
    Manifest,
    Needs,
    Source,
    TargetEntry,
    Tuning,
    VariantEntry,
)
from ssd_aot.bundle.store import Bundle
from ssd_aot.bundle.triton_files import (
    CachedKernel,
    CachedTuning,
    HostModule,
    TritonFiles,
    stored_path,
)
from ssd_aot.bundle.writer import BundleWriter
from ssd_aot.engines.groups import function_name
from ssd_aot.engines.rounds import Built, EngineRounds
from ssd_aot.engines.tracing import TracedLaunch
from ssd_aot.errors import BundleError
from ssd_aot.signatures import Signature
from ssd_aot.spec import Spec
from ssd_aot.targets import Target
from ssd_aot.triton_compat import HostSource, build_host_module, driver_source, toolchain


@dataclass(frozen=True)
class BuiltTarget:
    """What was built for one target."""

    target: Target
    traced: tuple[TracedLaunch, ...]
    rounds: EngineRounds


def write_bundle(
    spec: Spec,
    version: str,
    signatures: Sequence[Signature],
    parts: Sequence[BuiltTarget],
    out: Path,
    failures: Sequence[str],
    tune_at_serve: bool,
) -> tuple[Manifest, bool]:
    writer = BundleWriter(out)
    entries: dict[tuple[str, str], VariantEntry] = {}
    kernels: dict[str, CachedKernel] = {}
    tunings: dict[str, CachedTuning] = {}
    launchers: dict[str, HostSource] = {}
    for part in parts:
        for one in part.rounds.built:
            kernel = _add_kernel(writer, part.target, one)
            kernels[kernel.key] = kernel
            entry = _entry(part.target, one)
            # Tuned for several sizes, one variant may be there for several groups of signatures.
            known = entries.get((entry.target, kernel.variant))
            needed = {*entry.signatures, *(known.signatures if known else ())}
            entries[entry.target, kernel.variant] = replace(entry, signatures=tuple(sorted(needed)))
            if not tune_at_serve:
                tuning = _add_tuning(writer, part.target, one)
                if tuning is not None:
                    tunings[tuning.key] = tuning
        for one in part.rounds.refused:
            kernel = _add_kernel(writer, part.target, one)
            kernels.setdefault(kernel.key, kernel)
        for one in (*part.rounds.built, *part.rounds.refused):
            launcher = one.compiled.object.launcher
            if launcher is not None:
                launchers[launcher.sha256] = launcher
    modules = [driver_source(), *(launchers[name] for name in sorted(launchers))]
    manifest = Manifest(
        spec=spec.normalised(),
        spec_digest=spec.digest,
        signatures=tuple((s.id, s.to_json()) for s in signatures),
        source=Source(spec.source, version, _kernel_sources(parts)),
        launch_abi="",
        toolchain=toolchain(of_engine=True),
        targets=tuple(TargetEntry.of(part.target) for part in parts),
        variants=tuple(entries.values()),
        missing=tuple(sorted(failures)),
        triton=TritonFiles(
            tuple(kernels.values()),
            tuple(tunings.values()),
            tuple(_add_module(writer, module) for module in modules),
        ),
        files=writer.files,
        needs=_needs(parts, tune_at_serve),
        texts=_kernel_texts(parts),
    )
    if _is_there(out, manifest):
        return manifest, True
    writer.commit(manifest)
    return manifest, False


def _is_there(out: Path, manifest: Manifest) -> bool:
    try:
        bundle = Bundle.open(out)
    except BundleError:
        return False
    return bundle.digest == manifest.digest and not bundle.check_files()


def _add_kernel(writer: BundleWriter, target: Target, one: Built) -> CachedKernel:
    made = one.compiled.object
    writer.add_object(made.cubin)
    sha256 = hashlib.sha256(made.metadata).hexdigest()
    writer.add_file(stored_path(sha256, ".json"), made.metadata)
    return CachedKernel(
        key=one.candidate.key,
        # Triton cuts long names short (`compile`: 3.6.0 to 3.9.0).
        name=function_name(one.group.kernel).rpartition(".")[2][:150],
        launch_key=one.candidate.launch_key,
        target=target.name,
        variant=one.compiled.task.variant.identity,
        cubin_sha256=made.code.sha256,
        metadata_sha256=sha256,
        metadata_bytes=len(made.metadata),
    )


def _add_tuning(writer: BundleWriter, target: Target, one: Built) -> CachedTuning | None:
    """The result under which Triton finds the choice made, None where it stores none."""
    result = one.group.tuning
    if result is None or not result.key:
        return None
    median_us = one.choice.tuning.median_us
    # Triton keeps milliseconds at three quantiles; a choice that was not measured has none.
    timing = None if median_us is None else [median_us / 1000] * 3
    content = {
        "key": json.loads(result.tuning_key),
        "configs_timings": [[json.loads(one.candidate.spelled), timing]],
        # Triton reads no more than these; what the choice was made among is for `explain`.
        "candidates": [json.loads(c.spelled) for c in one.traced.captured.candidates],
    }
    data = json.dumps(content, sort_keys=True).encode()
    sha256 = hashlib.sha256(data).hexdigest()
    writer.add_file(stored_path(sha256, ".json"), data)
    return CachedTuning(result.key, result.file, target.name, one.group.kernel, sha256, len(data))


def _add_module(writer: BundleWriter, source: HostSource) -> HostModule:
    data = build_host_module(source)
    sha256 = hashlib.sha256(data).hexdigest()
    writer.add_file(stored_path(sha256, ".so"), data)
    return HostModule(source.name, source.sha256, source.keys, sha256, len(data))


def _entry(target: Target, one: Built) -> VariantEntry:
    untuned = len(one.group.candidates) == 1
    launch = one.traced.captured.launch
    return VariantEntry(
        target=target.name,
        launch=launch,
        configuration=one.choice.configuration,
        object=one.compiled.object.code,
        # Where there is nothing to choose, nothing is left to be measured.
        tuning=Tuning("fixed") if untuned else one.choice.tuning_of(launch.identity),
        signatures=one.traced.signatures,
    )


def _kernel_sources(parts: Sequence[BuiltTarget]) -> tuple[tuple[str, str], ...]:
    found = {
        traced.captured.launch.kernel: traced.captured.source_sha256
        for part in parts
        for traced in part.traced
    }
    return tuple(sorted(found.items()))


def _kernel_texts(parts: Sequence[BuiltTarget]) -> tuple[tuple[str, KernelText], ...]:
    found = {
        traced.captured.launch.kernel: traced.captured.text
        for part in parts
        for traced in part.traced
        if traced.captured.text is not None
    }
    return tuple(sorted(found.items(), key=lambda item: item[0]))


def _needs(parts: Sequence[BuiltTarget], tune_at_serve: bool) -> Needs:
    """What was planned, whatever came of it."""
    results = {
        (part.target.name, traced.captured.launch.kernel, traced.captured.tuning.key)
        for part in parts
        for traced in part.traced
        if traced.captured.tuning is not None and traced.captured.tuning.key and not tune_at_serve
    }
    return Needs.of(
        (
            (part.target.name, traced.captured.launch, traced.signatures)
            for part in parts
            for traced in part.traced
        ),
        ((target, kernel) for target, kernel, _ in results),
    )
