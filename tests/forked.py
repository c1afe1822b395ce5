"""Test code in a process of its own, forked from this one: what it sets up ends with it."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import pytest

_PATIENCE_S = 180


def forked(work: Callable[..., Any], *arguments: Any, **environment: str | None) -> Any:
    """What `work(*arguments)` returns, in a process with these variables set (None: unset).

    An assertion that fails there fails here, and so does any other exception.
    """
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(writer, work, arguments, environment))
    process.start()
    writer.close()
    try:
        answer = (
            reader.recv() if reader.poll(_PATIENCE_S) else ("", f"no answer within {_PATIENCE_S} s")
        )
    except EOFError:
        answer = ("", "the process ended without an answer")
    finally:
        process.join(1)
        if process.is_alive():
            process.kill()
        process.join()
    result, failure = answer
    if failure:
        pytest.fail(failure, pytrace=False)
    return result


def _run(
    writer: Connection,
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
    environment: dict[str, str | None],
) -> None:
    for name, value in environment.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    try:
        writer.send((work(*arguments), ""))
    except BaseException:
        writer.send(("", traceback.format_exc()))
