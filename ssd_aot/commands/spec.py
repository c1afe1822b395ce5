"""`ssd-aot spec`: a spec from a Hugging Face model config."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.option("--from-config", "config", required=True, metavar="FILE",
              type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="A Hugging Face config.json.")  # fmt: skip
@click.option("--name", metavar="MODEL", help="The model's name. [default: the folder's]")
@click.option("--json", "as_json", is_flag=True,
              help="Print the spec as one JSON document, which --spec reads too.")  # fmt: skip
def spec(config: Path, name: str | None, as_json: bool) -> None:
    """Write a spec from a Hugging Face model config to stdout."""
    import yaml

    from ssd_aot.models import spec_from_file

    text = spec_from_file(config, name)
    click.echo(json.dumps(yaml.safe_load(text)) if as_json else text.rstrip())
