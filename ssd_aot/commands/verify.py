"""`ssd-aot verify`: whether a bundle is whole, untouched, complete and right for this host."""

from __future__ import annotations

import json
import sys

import click


@click.command()
@click.argument("bundle")
@click.option("--spec", "specs", multiple=True, metavar="FILE",
              help="Check against this spec. [default: the one in the bundle]")  # fmt: skip
@click.option("--gpu", metavar="NAME", help="Check that the bundle serves this GPU.")
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
    from ssd_aot.checking import check_bundle
    from ssd_aot.fuzzing.checking import Fuzzing

    fuzz = Fuzzing(batches, seed) if batches else None
    report = check_bundle(
        bundle, specs=specs, gpu=gpu, digest=digest, run=run_signatures, fuzz=fuzz
    )
    click.echo(json.dumps(report.to_json()) if as_json else str(report))
    if not report.passed:
        sys.exit(1)
