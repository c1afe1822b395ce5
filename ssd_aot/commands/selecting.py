"""The options of every command that plans, and what they select."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import click

from ssd_aot import terminal
from ssd_aot.bundle.choosing import BUILTIN
from ssd_aot.commands.completing import gpu_names, source_names, spec_names
from ssd_aot.compilation.crews import Crew, Workers, make_crew
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
        click.option("--source", metavar="NAME", shell_complete=source_names,
                     help="Overrides the spec's source."),
        click.option(
            "--spec", "specs", multiple=True, metavar="FILE", shell_complete=spec_names,
            help="A spec file or the name of a shipped one; may be repeated. [default: default]",
        ),
        click.option(
            "--gpu", "gpus", multiple=True, metavar="NAME", shell_complete=gpu_names,
            help="Target GPU; may be repeated. Overrides the spec's targets.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def crew_options(command: Any) -> Any:
    """The options that say who compiles and measures: the same for every command that does."""
    for option in (
        click.option(
            "--ray-address", metavar="ADDRESS",
            help="The cluster of --workers ray. [default: RAY_ADDRESS, else the one on this host]",
        ),
        click.option(
            "--workers", type=click.Choice(get_args(Workers)), default="local", show_default=True,
            help="Who compiles and measures: this host, or a Ray cluster.",
        ),
        click.option(
            "--jobs", type=click.IntRange(1),
            help="Parallel compilations. [default: the cores here, or the cluster's CPUs]",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def crew_of(
    workers: Workers, jobs: int | None, ray_address: str | None, devices: Sequence[int] = ()
) -> AbstractContextManager[Crew]:
    """The crew of `crew_options`; what it has to tell goes to stderr."""
    if workers == "local" and ray_address is not None:
        raise UsageError("there is no cluster to connect to", where="--ray-address",
                         found="--workers local", wanted="--workers ray",
                         mend="add --workers ray, or drop the address")  # fmt: skip
    if workers == "ray" and devices:
        raise UsageError("a cluster's GPUs have no numbers here", where="--device",
                         found="--workers ray", wanted="all the cluster's GPUs of the model",
                         mend="drop --device, or measure with --workers local")  # fmt: skip
    return make_crew(
        workers, jobs=jobs, cores=available_cores(), devices=devices, ray_address=ray_address,
        on_notice=notice_printer(),
    )  # fmt: skip


def notice_printer() -> Callable[[str], None]:
    """Prints notices, from whichever thread, as this command speaks."""
    context = copy_context()
    return lambda text: context.copy().run(terminal.note, f"note: {text}")


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
        terminal.note(f"note: {notice}")
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
