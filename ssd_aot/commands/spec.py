"""`ssd-aot spec`: a spec from a Hugging Face model config."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ssd_aot.errors import UsageError


@click.command()
@click.option("--from-config", "config", required=True, metavar="FILE",
              type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="A Hugging Face config.json.")  # fmt: skip
@click.option("--name", metavar="MODEL", help="The model's name. [default: the folder's]")
def spec(config: Path, name: str | None) -> None:
    """Write a spec from a Hugging Face model config to stdout."""
    from ssd_aot.models import spec_from_config

    try:
        values = json.loads(config.read_text(encoding="utf-8"))
        problem = "" if isinstance(values, dict) else type(values).__name__
    except (OSError, ValueError) as error:
        problem = str(error)
    if problem:
        raise UsageError("the model config is not a JSON object", where=str(config), found=problem,
                         wanted="a config.json", mend="pass the file of the model")  # fmt: skip
    click.echo(spec_from_config(values, name or config.resolve().parent.name), nl=False)
