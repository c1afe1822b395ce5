"""`ssd-aot verify`: whether a bundle is whole, untouched, complete and right for this host."""

from __future__ import annotations

import json
import sys

import click

from ssd_aot import terminal
from ssd_aot.commands.completing import bundles, gpu_names, spec_names


@click.command()
@click.argument("bundle", shell_complete=bundles)
@click.option("--spec", "specs", multiple=True, metavar="FILE", shell_complete=spec_names,
              help="Check against this spec. [default: the one in the bundle]")  # fmt: skip
@click.option("--gpu", metavar="NAME", shell_complete=gpu_names,
              help="Check that the bundle serves this GPU.")  # fmt: skip
@click.option("--digest", metavar="SHA256", help="Check that it is exactly this bundle.")
@click.option("--run", "run_signatures", is_flag=True,
              help="Run every signature on the GPU here and check its results.")  # fmt: skip
@click.option(
    "--fuzz",
    "batches",
    type=click.IntRange(min=1),
    metavar="N",
    help="Draw N random serving batches and look up every launch; needs no GPU.",
)
@click.option("--seed", type=int, default=0, show_default=True,
              help="Which random batches --fuzz draws.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def verify(
    bundle: str,
    specs: tuple[str, ...],
    gpu: str | None,
    digest: str | None,
    run_signatures: bool,
    batches: int | None,
    seed: int,
    as_json: bool,
) -> None:
    """Check that a bundle is whole, untouched, complete and right for this host."""
    from ssd_aot.fuzzing.checking import Fuzzing
    from ssd_aot.verification.checking import check_bundle

    fuzz = Fuzzing(batches, seed) if batches else None
    report = check_bundle(
        bundle, specs=specs, gpu=gpu, digest=digest, run=run_signatures, fuzz=fuzz
    )
    if as_json:
        click.echo(json.dumps(report.to_json()))
    else:
        terminal.show(report.render(every=terminal.is_verbose()))
    if not report.passed:
        sys.exit(1)
