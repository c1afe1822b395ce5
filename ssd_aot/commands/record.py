"""`ssd-aot record`: run a program and write a spec of every Triton kernel in it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ssd_aot.commands.selecting import WrittenPath


@click.command(context_settings={"ignore_unknown_options": True})
@click.option("--out", type=WrittenPath(), required=True, help="The spec file to write.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- CMD...")
def record(out: Path, command: tuple[str, ...]) -> None:
    """Run a program, child processes included, and record every Triton kernel it compiles or loads.

    The program needs ssd-aot in its own Python environment. The file is a spec: `build` takes it.
    """
    from ssd_aot.recording.program import record_program, spec_text
    from ssd_aot.writing import write_error

    run = record_program(command)
    found = run.recording
    for kernel, reason in found.left_out:
        click.echo(f"left out: {kernel}: {reason}", err=True)
    text = spec_text(found)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise write_error(error, out, len(text)) from error
    click.echo(
        f"{out}: {len(found.kernels)} kernels in {len(found.launches)} launches, "
        f"{len(found.tunings)} tunings, {len(found.left_out)} kernels left out"
    )
    if not found.launches:
        click.echo("the program ran no Triton kernel: no bundle can be built of this", err=True)
    if run.code:
        click.echo(f"the program ended with exit code {run.code}", err=True)
    sys.exit(run.code)
