"""`ssd-aot tune`: compile, measure, merge; in one run or on two hosts."""

from __future__ import annotations

from pathlib import Path

import click

from ssd_aot.commands.selecting import WrittenPath, available_cores, read_selection, selection
from ssd_aot.errors import UsageError
from ssd_aot.targets import Target


@click.command()
@selection
@click.option(
    "--out",
    type=WrittenPath(),
    metavar="FILE",
    help="The record to write or extend. [default: tuning/GPU.builtin.json]",
)
@click.option("--budget", metavar="TIME", help="Stop measuring after this long: 90s, 10m.")
@click.option("--jobs", type=click.IntRange(1), default=available_cores,
              show_default="the cores here", help="Parallel compilations.")  # fmt: skip
@click.option("--device", type=click.IntRange(0), default=0, help="CUDA index of the GPU.")
@click.option(
    "--compile-only",
    type=WrittenPath(),
    metavar="DIR",
    help="Compile all candidates into DIR and measure nothing; needs no GPU.",
)
@click.option("--compiled", type=click.Path(exists=True, path_type=Path), metavar="DIR",
              help="Measure what --compile-only wrote; needs no Triton.")  # fmt: skip
@click.option("--merge", "merged", nargs=2, type=click.Path(exists=True, path_type=Path),
              metavar="A B", help="Merge two records into --out.")  # fmt: skip
def tune(
    gpus: tuple[str, ...],
    specs: tuple[str, ...],
    source: str | None,
    out: Path | None,
    budget: str | None,
    jobs: int,
    device: int,
    compile_only: Path | None,
    compiled: Path | None,
    merged: tuple[Path, Path] | None,
) -> None:
    """Measure every candidate on the GPU here and write a tuning record."""
    from ssd_aot.progress import ProgressPrinter

    progress = ProgressPrinter()
    if merged is not None:
        from ssd_aot.tuning.tuner import merge_files

        record = merge_files(list(merged), out or Path("tuning") / merged[0].name)
        click.echo(f"{record.name}: {len(record.entries)} launches")
        return
    if compiled is not None:
        from ssd_aot.tuning.compiled_candidates import CompiledCandidates

        candidates = CompiledCandidates.read(compiled)
    else:
        spec, targets = read_selection(gpus, specs, source)
        if len(targets) != 1:
            raise UsageError("tuning is for one GPU at a time", where="--gpu", wanted="one GPU",
                             found=", ".join(gpu.name for gpu in targets),
                             mend="run it for each")  # fmt: skip
        if compile_only is None:
            from ssd_aot.tuning.device_measuring import check_device

            check_device(targets[0], device)
        from ssd_aot.tuning.candidate_compiling import compile_spec

        place = compile_only or out or record_path(targets[0])
        candidates = compile_spec(spec, targets[0], place, jobs=jobs, on_progress=progress)
    if compile_only is not None:
        path = candidates.write(compile_only)
        click.echo(f"{path}: {len(candidates.launches)} launches, {candidates.count} candidates, "
                   f"{path.stat().st_size / 1e6:.1f} MB")  # fmt: skip
        return
    from ssd_aot.tuning.host import measure_candidates

    report = measure_candidates(
        candidates, out or record_path(candidates.target), budget_s=read_seconds(budget),
        device=device, on_progress=ProgressPrinter(),
    )  # fmt: skip
    click.echo(str(report))


def record_path(gpu: Target) -> Path:
    return Path("tuning") / f"{gpu.name}.builtin.json"


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
