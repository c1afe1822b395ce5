"""`ssd-aot report`: an HTML page about a bundle."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ssd_aot.commands.completing import bundles


@click.command()
@click.argument("bundle", shell_complete=bundles)
@click.option("-o", "--out", type=click.Path(path_type=Path), default=Path("report.html"),
              show_default=True, metavar="FILE", help="The page to write.")  # fmt: skip
@click.option("--tuning", "records", multiple=True, metavar="FILE",
              type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="A tuning record, asked before those in ./tuning and the package's own; may be "
              "repeated.")  # fmt: skip
@click.option("--bench", "bench_file", metavar="FILE",
              type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="What `ssd-aot bench BUNDLE --json` printed.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def report(
    bundle: str, out: Path, records: tuple[Path, ...], bench_file: Path | None, as_json: bool
) -> None:
    """Write an HTML page about a bundle: what it covers and what was measured; needs no GPU."""
    from ssd_aot.report.making import make_report

    made = make_report(bundle, out, records=records, bench_file=bench_file)
    click.echo(json.dumps(made.to_json()) if as_json else str(made))
