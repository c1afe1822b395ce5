"""`ssd-aot explain`: why a launch missed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click


@click.command()
@click.argument("bundle")
@click.option("--launch", "launches", multiple=True, metavar="FILE",
              type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="A file with the guard's JSON lines, such as a log; may be repeated. "
              "[default: standard input]")  # fmt: skip
@click.option("--recording", "recordings", multiple=True, metavar="FILE",
              type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="A recording, held whole against the bundle; may be repeated.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def explain(
    bundle: str, launches: tuple[Path, ...], recordings: tuple[Path, ...], as_json: bool
) -> None:
    """Say why launches missed: the nearest entry, what differs from it, and what to do.

    Exits 1 where a recording has launches or kernels that the bundle does not hold.
    """
    from ssd_aot.bundle.store import Bundle
    from ssd_aot.errors import UsageError
    from ssd_aot.spec import load_spec
    from ssd_aot.verification.explaining import asked_in, explain_recording
    from ssd_aot.verification.explaining import explain as explained

    held = Bundle.open(bundle)
    texts = [(path.read_text(errors="replace"), str(path)) for path in launches]
    if not launches and not recordings:
        texts = [(sys.stdin.read(), "standard input")]
    found = [explained(held, asked) for text, where in texts for asked in asked_in(text, where)]
    coverage = None
    if recordings:
        recording = load_spec(recordings).recording
        if recording is None:
            raise UsageError("not a recording", where=str(recordings[0]), found="a spec of models",
                             wanted="a file that ssd-aot record wrote")  # fmt: skip
        coverage = explain_recording(held, recording)
    if as_json:
        recorded = {} if coverage is None else {"recording": coverage.to_json()}
        click.echo(json.dumps({"launches": [one.to_json() for one in found], **recorded}))
    else:
        lines = [line for one in found for line in one.lines()]
        click.echo("\n".join([*lines, *(coverage.lines() if coverage else [])]))
    if coverage is not None and (coverage.missing or coverage.outside):
        sys.exit(1)
