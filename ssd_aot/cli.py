"""The command line: each command is a module of `commands`, read when it is called for.

Results go to stdout, messages to stderr.
"""

from __future__ import annotations

import importlib
from typing import Any

import click

import ssd_aot
from ssd_aot.errors import SsdAotError

COMMANDS = (
    "bench",
    "build",
    "doctor",
    "env",
    "export",
    "inspect",
    "pack",
    "plan",
    "report",
    "spec",
    "tune",
    "unpack",
    "verify",
)
INTERRUPTED = 130
"""What shells report for a program that Ctrl-C ended: 128 and the number of SIGINT."""


class Commands(click.Group):
    """Finds commands by module, and turns the package's own errors into message and exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"ssd_aot.commands.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SsdAotError as error:
            click.echo(f"error: {error}", err=True)
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("\ninterrupted; a build that is run again continues", err=True)
            ctx.exit(INTERRUPTED)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(ssd_aot.__version__, prog_name="ssd-aot")
def main() -> None:
    """Ahead-of-time compiled Mamba2 SSD kernels."""


if __name__ == "__main__":
    main()
