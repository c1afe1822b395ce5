"""`ssd-aot tune`: compile, measure, merge; in one run or on two hosts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click

from ssd_aot.bundle.choosing import BUILTIN
from ssd_aot.bundle.layout import MANIFEST_FILE
from ssd_aot.commands.selecting import (
    WrittenPath,
    available_cores,
    crew_of,
    crew_options,
    notice_printer,
    read_selection,
    selection,
)
from ssd_aot.compilation.crews import Workers
from ssd_aot.errors import UsageError
from ssd_aot.spec import Spec
from ssd_aot.targets import Target


@click.command()
@selection
@click.option(
    "--out",
    type=WrittenPath(),
    metavar="FILE",
    help="The record to write or extend. [default: tuning/GPU.SOURCE.json]",
)
@click.option("--budget", metavar="TIME", help="Stop measuring after this long: 90s, 10m.")
@crew_options
@click.option("--device", "devices", type=click.IntRange(0), multiple=True, metavar="INDEX",
              help="CUDA index of a GPU to measure on; may be repeated. [default: all GPUs of the "
              "model here]")  # fmt: skip
@click.option(
    "--compile-only",
    type=WrittenPath(),
    metavar="DIR",
    help="Compile all candidates into DIR and measure nothing; needs no GPU.",
)
@click.option("--compiled", type=click.Path(exists=True, path_type=Path), metavar="DIR",
              help="Measure what --compile-only wrote; builtin kernels need no Triton "
              "then.")  # fmt: skip
@click.option("--merge", "merged", nargs=2, type=click.Path(exists=True, path_type=Path),
              metavar="A B", help="Merge two records into --out.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def tune(
    gpus: tuple[str, ...],
    specs: tuple[str, ...],
    source: str | None,
    out: Path | None,
    budget: str | None,
    jobs: int | None,
    workers: Workers,
    ray_address: str | None,
    devices: tuple[int, ...],
    compile_only: Path | None,
    compiled: Path | None,
    merged: tuple[Path, Path] | None,
    as_json: bool,
) -> None:
    """Measure every candidate on the GPUs here and write a tuning record."""
    from ssd_aot.progress import ProgressPrinter

    progress, budget_s = ProgressPrinter(), read_seconds(budget)
    if merged is not None:
        from ssd_aot.tuning.tuner import merge_files

        place = out or Path("tuning") / merged[0].name
        record = merge_files(list(merged), place)
        facts = {"path": str(place), "record": record.name, "launches": len(record.entries)}
        shown = f"{record.name}: {len(record.entries)} launches"
        click.echo(json.dumps(facts) if as_json else shown)
        return
    spec = gpu = None
    if compiled is None:
        spec, targets = read_selection(gpus, specs, source)
        if len(targets) != 1:
            raise UsageError("tuning is for one GPU at a time", where="--gpu",
                             wanted="one GPU", found=", ".join(gpu.name for gpu in targets),
                             mend="run it for each")  # fmt: skip
        gpu = targets[0]
    if (spec is not None and spec.source != BUILTIN) or _is_bundle(compiled):
        refuse_shared(workers, devices)
        tune_engine(
            spec, gpu, compiled, compile_only, out, jobs=jobs or available_cores(),
            budget_s=budget_s, devices=devices, as_json=as_json,
        )  # fmt: skip
        return
    with crew_of(workers, jobs, ray_address, devices) as crew:
        if compiled is not None:
            from ssd_aot.tuning.compiled_candidates import CompiledCandidates

            candidates = CompiledCandidates.read(compiled)
        else:
            assert spec is not None and gpu is not None
            if compile_only is None:
                crew.check_gpu(gpu)
            from ssd_aot.tuning.candidate_compiling import compile_spec

            place = compile_only or out or record_path(gpu)
            candidates = compile_spec(
                spec, gpu, place, jobs=crew.jobs, executor=crew.executor, on_progress=progress
            )
        if compile_only is not None:
            path = candidates.write(compile_only)
            launches, size_bytes = len(candidates.launches), path.stat().st_size
            written = {"path": str(path), "launches": launches, "candidates": candidates.count,
                       "bytes": size_bytes}  # fmt: skip
            shown = (f"{path}: {launches} launches, {candidates.count} candidates, "
                     f"{size_bytes / 1e6:.1f} MB")  # fmt: skip
            click.echo(json.dumps(written) if as_json else shown)
            return
        from ssd_aot.tuning.host import measure_candidates

        report = measure_candidates(
            candidates, out or record_path(candidates.target), crew,
            budget_s=budget_s, on_progress=ProgressPrinter(), on_notice=notice_printer(),
        )  # fmt: skip
    click.echo(json.dumps(report.to_json()) if as_json else str(report))


def tune_engine(
    spec: Spec | None,
    gpu: Target | None,
    compiled: Path | None,
    compile_only: Path | None,
    out: Path | None,
    *,
    jobs: int,
    budget_s: float | None,
    devices: tuple[int, ...],
    as_json: bool,
) -> None:
    """An engine's kernels: compiled where `compiled` names no bundle of their candidates, and
    measured unless they are to be compiled only."""
    from ssd_aot.engines import tuning_process

    reasons: Mapping[str, str] = {}
    candidates = compiled
    if candidates is None:
        assert spec is not None and gpu is not None
        place = out or record_path(gpu, spec.source)
        candidates = compile_only or place.with_name(place.name + ".candidates")
        tuning_process.require_measured(spec.source, spec.place("source"))
        if compile_only is None:
            tuning_process.check_gpu(gpu, devices)
        reasons = tuning_process.compile_candidates(spec, gpu, candidates, jobs=jobs)
    if compile_only is not None:
        facts = tuning_process.candidate_facts(candidates)
        shown = "{path}: {launches} launches, {candidates} candidates".format(**facts)
        click.echo(json.dumps(facts) if as_json else shown)
        return
    tuning, notices = tuning_process.prepare_tuning(candidates, reasons)
    note = notice_printer()
    for notice in notices:
        note(notice)
    report = tuning_process.measure_on_gpu(
        tuning, out or record_path(tuning.target, tuning.source), devices=devices,
        budget_s=budget_s, on_notice=note,
    )  # fmt: skip
    if compiled is None and not report.left:
        tuning_process.discard_candidates(tuning)
    click.echo(json.dumps(report.to_json()) if as_json else str(report))


def refuse_shared(workers: Workers, devices: tuple[int, ...]) -> None:
    """An engine's kernels are tuned on one GPU of this host."""
    if workers != "local":
        raise UsageError("an engine's kernels are tuned on this host", where="--workers",
                         found=workers, wanted="local",
                         mend="drop --workers, or tune builtin kernels")  # fmt: skip
    if len(devices) > 1:
        raise UsageError("an engine's kernels are tuned on one GPU", where="--device",
                         found=", ".join(map(str, devices)), wanted="one index",
                         mend="name one")  # fmt: skip


def _is_bundle(compiled: Path | None) -> bool:
    return compiled is not None and (compiled / MANIFEST_FILE).is_file()


def record_path(gpu: Target, source: str = BUILTIN) -> Path:
    return Path("tuning") / f"{gpu.name}.{source}.json"


def read_seconds(text: str | None) -> float | None:
    """Seconds of `90s`, `10m`, `1h` or a bare number of seconds."""
    if text is None:
        return None
    number, unit = (text[:-1], text[-1]) if text[-1:].isalpha() else (text, "s")
    try:
        return float(number) * {"s": 1, "m": 60, "h": 3600}[unit]
    except (ValueError, KeyError):
        raise UsageError("not a time", where="--budget", found=text, wanted="90s, 10m or 1h",
                         mend="write a number and a unit") from None  # fmt: skip
