"""Bundles, tuning records and benchmarks for tests of the report: real launches, made-up times."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bundle_builders import H200, TOOLCHAIN, code_object, write_bundle
from cubin_builders import fake_cubin
from signature_builders import signature

from ssd_aot.bundle.manifest import Manifest, Source, TargetEntry, Tuning, VariantEntry
from ssd_aot.bundle.store import Bundle
from ssd_aot.candidates import candidates
from ssd_aot.launches import Configuration, Launch
from ssd_aot.layouts import FormRule
from ssd_aot.plan import PlannedLaunch
from ssd_aot.signatures import Signature
from ssd_aot.sources.builtin import enumerate_launches, kernel_sources, source_hashes
from ssd_aot.targets import target
from ssd_aot.tuning.choices import RecordFile
from ssd_aot.tuning.records import Entry, Record, Session, Trial, offered_digest

FOUR = tuple(
    signature(model="tiny-7b", tp=tp, nheads=64 // tp, state_dtype=state, num_seqs=(2, 64))
    for tp in (1, 2)
    for state in ("fp32", "fp16")
)
"""Two sizes of tensor parallelism, two dtypes of states."""

SESSION = Session.of(TOOLCHAIN, date="2026-01-02T03:04:05Z", device="NVIDIA H200", driver="570.1")
BATCHES = ("64h 1x256", "64h 8x8192")


def everything(launch: Launch) -> bool:
    return True


def report_bundle(
    path: Path,
    signatures: Sequence[Signature] = FOUR,
    *,
    targets: Sequence[TargetEntry] = (H200,),
    held: Callable[[Launch], bool] = everything,
    tuning: Mapping[str, Tuning] | None = None,
    **changes: Any,
) -> Bundle:
    """Every launch of the signatures, those that are not `held` missing; `tuning` by kernel, else
    default; with fields of the manifest replaced."""
    entries, contents, missing = [], {}, []
    for entry in targets:
        for launch, ids in needed(signatures, entry).items():
            offered = candidates(launch, target(entry.name))
            if not held(launch):
                missing.append(str(PlannedLaunch(launch, target(entry.name), offered, ids)))
                continue
            data = fake_cubin(entry.capability[0] * 10, launch.identity.encode(), suffix=True)
            spills = 24 if launch.kernel == "scan" else 0
            code = code_object(
                data, entry.arch, function=launch.kernel, registers=168, spill_bytes=spills
            )
            chosen = (tuning or {}).get(launch.kernel, Tuning("default"))
            entries.append(VariantEntry(entry.name, launch, offered[0], code, chosen, ids))
            contents[code.path] = data
    files = {(e.object.path, e.object.sha256, e.object.size_bytes) for e in entries}
    made = Manifest(
        spec={"version": 1, "models": {"tiny-7b": {"nheads": 64}}},
        spec_digest="5" * 64,
        signatures=tuple((s.id, s.to_json()) for s in signatures),
        source=Source("builtin", "0.1.0", source_hashes()),
        launch_abi="1" * 64,
        toolchain=TOOLCHAIN,
        targets=tuple(targets),
        variants=tuple(entries),
        missing=tuple(sorted(missing)),
        files=tuple(sorted(files)),
    )
    return write_bundle(path, replace(made, **changes), contents)


def needed(signatures: Sequence[Signature], entry: TargetEntry) -> dict[Launch, tuple[str, ...]]:
    """The launches of signatures on a target, with the ids that need each."""
    rule = FormRule(entry.walk_programs, entry.walk_tokens)
    found: dict[Launch, list[str]] = {}
    for one in signatures:
        for launch in enumerate_launches(one, rule):
            found.setdefault(launch, []).append(one.id)
    return {launch: tuple(ids) for launch, ids in found.items()}


def entry_of(launch: Launch, *, winner: int = 0, trials: int = 5, **changes: Any) -> Entry:
    """An entry of an H200 whose candidate number `winner` took 100 µs, the others ever longer, and
    whose last was rejected."""
    offered = candidates(launch, target("h200"))
    order = [offered[winner], *(c for c in offered[:trials] if c != offered[winner])]
    timed = [_trial(c, 100.0 + 10 * place) for place, c in enumerate(order[:-1])]
    wrong = Trial(order[-1], rejected="outputs off by 1.2e-02 at lengths (700,)", error=1.2e-2)
    made = Entry(
        identity=launch.identity, kernel=launch.kernel, launch=str(launch), session=SESSION,
        source=dict(kernel_sources())[launch.kernel], offered=offered_digest(offered),
        offered_count=len(offered), workloads=BATCHES, default=offered[0],
        winner=offered[winner], trials=(*timed, wrong),
    )  # fmt: skip
    return replace(made, **changes)


def _trial(configuration: Configuration, time_us: float) -> Trial:
    return Trial(configuration, (time_us / 4, time_us), error=2.4e-3, registers=168, spill_bytes=24)


def record_file(*entries: Entry, gpu: str = "h200", name: str = "h200.json") -> RecordFile:
    return RecordFile(Path("somewhere") / name, Record(gpu, "builtin").with_entries(entries))


def launch_named(bundle: Bundle, kernel: str, **constexprs: Any) -> Launch:
    """The bundle's first launch of a kernel with these constexprs."""
    return next(
        v.launch
        for v in bundle.manifest.variants
        if v.launch.kernel == kernel and constexprs.items() <= dict(v.launch.constexprs).items()
    )


def bench_json(**changes: Any) -> dict[str, Any]:
    """What `ssd-aot bench --json` prints, with two workloads and an engine beside."""
    rows = [
        {
            "workload": workload, "contestant": contestant, "host": _span(host),
            "device": _span(device) if device else None,
        }
        for workload, scale in (("512 tokens", 1), ("A: 8 x 1024", 4))
        for contestant, host, device in (
            ("drop-in", 20.0, 50.0 * scale), ("prepared", 16.0, 50.0 * scale),
            ("2 bare launches", 8.0, None), ("graph of ours", 3.0, None),
            ("vllm", 400.0, 125.0 * scale),
        )
    ]  # fmt: skip
    machine = {"GPU": "NVIDIA H200", "driver": "570.1", "torch": "2.13.0"}
    absent = {"mamba_ssm": "ModuleNotFoundError: No module named 'mamba_ssm'"}
    return {"machine": machine, "rows": rows, "absent": absent, **changes}


def _span(median_us: float) -> dict[str, float]:
    return {"median_us": median_us, "low_us": median_us * 0.95, "high_us": median_us * 1.1}
