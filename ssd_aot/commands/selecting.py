"""The options of every command that plans, and what they select."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ssd_aot.bundle.choosing import BUILTIN
from ssd_aot.errors import UsageError
from ssd_aot.spec import Spec, load_spec, resolve_spec
from ssd_aot.targets import Target, target


class WrittenPath(click.Path):
    """A file or folder to be written. An empty name, which is most often an unset variable of a
    script, would be the current folder, and is refused."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if value == "":
            where = param.opts[0] if param is not None else ""
            raise UsageError("not a path", where=where, found="''", wanted="a file or folder",
                             mend="name one, or leave the option out")  # fmt: skip
        return super().convert(value, param, ctx)


def selection(command: Any) -> Any:
    """The options that select what is built: the same for every command that plans."""
    for option in (
        click.option("--source", metavar="NAME", help="Overrides the spec's source."),
        click.option(
            "--spec", "specs", multiple=True, metavar="FILE",
            help="A spec file or the name of a shipped one; may be repeated. [default: default]",
        ),
        click.option(
            "--gpu", "gpus", multiple=True, metavar="NAME",
            help="Target GPU; may be repeated. Overrides the spec's targets.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def read_selection(
    gpus: Sequence[str], specs: Sequence[str], source: str | None
) -> tuple[Spec, tuple[Target, ...]]:
    from ssd_aot.sources import require_source

    spec = load_spec([resolve_spec(name) for name in specs or ("default",)])
    if source in (None, "recording") and spec.recording is not None:
        pass  # A recording names its kernels itself.
    elif source is None:
        require_source(spec.source, spec.place("source"))
    else:
        require_source(source, "--source")
        spec = replace(spec, source=source)
    names = gpus or spec.targets
    if not names:
        raise UsageError("no target GPU", where="--gpu", found="none", wanted="a GPU name",
                         mend="pass --gpu NAME or give targets in the spec")  # fmt: skip
    for notice in (*spec.notices, *_left_out(spec)):
        click.echo(f"note: {notice}", err=True)
    where = "--gpu" if gpus else spec.place("targets")
    return spec, tuple(dict.fromkeys(target(name, where) for name in names))


def _left_out(spec: Spec) -> tuple[str, ...]:
    """What of the spec its engine does not have; builtin kernels have all of it."""
    if spec.source == BUILTIN or spec.recording is not None:
        return ()
    from ssd_aot.engines.reaching import left_out

    return left_out(spec)


def available_cores() -> int:
    """The cores this process may use, which a container may hold below the machine's."""
    return len(os.sched_getaffinity(0))
