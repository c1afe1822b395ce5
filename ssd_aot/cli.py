"""The command line: each command is a module of `commands`, read when it is called for.

Results go to stdout, messages to stderr.
"""

from __future__ import annotations

import importlib
import traceback
from typing import Any

import click

import ssd_aot
from ssd_aot import terminal
from ssd_aot.errors import HostError, SsdAotError
from ssd_aot.terminal import Level

COMMANDS = (
    "bench",
    "build",
    "doctor",
    "env",
    "explain",
    "export",
    "inspect",
    "pack",
    "plan",
    "record",
    "report",
    "spec",
    "tune",
    "unpack",
    "verify",
)
INTERRUPTED = 130
"""What shells report for a program that Ctrl-C ended: 128 and the number of SIGINT."""
HUNG_UP = 141
"""What they report where the reader of a pipe went away: 128 and the number of SIGPIPE."""

_FAULT = """\
error: a fault of ssd-aot itself: {name}: {text}
  mend:   run it again with -v for the traceback, and report it"""


class Commands(click.Group):
    """Finds commands by module, and turns the package's own errors into message and exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"ssd_aot.commands.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        if not any(parameter.name == "quiet" for parameter in command.params):
            command.params += level_options()
        return command

    def invoke(self, ctx: click.Context) -> Any:
        terminal.spell_out_what_cannot_be_encoded()
        ctx.color = terminal.colour()
        try:
            return super().invoke(ctx)
        except SsdAotError as error:
            terminal.warn(f"error: {error}")
            for found in error.more if terminal.is_verbose() else ():
                terminal.warn(f"failed: {found}")
            ctx.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("\ninterrupted; a build that is run again continues", err=True)
            ctx.exit(INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if isinstance(error, BrokenPipeError) and terminal.hung_up():
                ctx.exit(HUNG_UP)
            ctx.exit(_told(error))


def _told(error: Exception) -> int:
    """Says what no part of the package had words for; the exit code."""
    if terminal.is_verbose():
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    if isinstance(error, OSError) and error.filename is not None:
        terminal.warn(f"error: {error.filename}: {error.strerror}")
        return HostError.exit_code
    terminal.warn(_FAULT.format(name=type(error).__name__, text=error))
    return SsdAotError.exit_code


def level_options() -> list[click.Parameter]:
    """`-q` and `-v`, which stand before a command or behind it."""
    return [
        click.Option(["-q", "--quiet"], is_flag=True, expose_value=False, callback=_set_level,
                     help="No progress and no notes."),
        click.Option(["-v", "--verbose"], is_flag=True, expose_value=False, callback=_set_level,
                     help="Every failure, each piece of work, and tracebacks of faults."),
    ]  # fmt: skip


def _set_level(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if not value:
        return
    root = ctx.find_root()
    wanted = Level.QUIET if param.name == "quiet" else Level.VERBOSE
    if root.meta.setdefault(__name__, wanted) is not wanted:
        raise click.UsageError("-q and -v contradict each other", ctx)
    root.with_resource(terminal.speaking(wanted))


@click.group(
    cls=Commands, params=level_options(), context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(ssd_aot.__version__, prog_name="ssd-aot")
def main() -> None:
    """Ahead-of-time compiled Mamba2 SSD kernels."""


if __name__ == "__main__":
    main()
