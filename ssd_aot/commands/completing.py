"""What the shell offers for names that only this package knows."""

from __future__ import annotations

from click import Context, Parameter
from click.shell_completion import CompletionItem


def gpu_names(ctx: Context, param: Parameter, incomplete: str) -> list[CompletionItem]:
    from ssd_aot.targets import TARGETS

    return [
        CompletionItem(target.name, help=target.arch)
        for target in TARGETS
        if target.name.startswith(incomplete.lower())
    ]


def spec_names(ctx: Context, param: Parameter, incomplete: str) -> list[CompletionItem]:
    """The shipped specs; where none fits, files."""
    from ssd_aot.spec import shipped_specs

    names = [name for name in shipped_specs() if name.startswith(incomplete)]
    return [CompletionItem(name) for name in names] or [CompletionItem(incomplete, type="file")]


def source_names(ctx: Context, param: Parameter, incomplete: str) -> list[CompletionItem]:
    from ssd_aot.spec_reading import SOURCES

    return [CompletionItem(name) for name in SOURCES if name.startswith(incomplete)]


def bundles(ctx: Context, param: Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="dir")]
