"""A call carried to another process as bytes, and what came of it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, Protocol


class WorkerGone(Exception):
    """The process that was to answer ended, or was ended because it did not answer."""


class Worker(Protocol):
    """A process that makes one call at a time for this one, here or on another machine."""

    @property
    def name(self) -> str: ...

    def call(
        self, function: Callable[..., Any], *arguments: object, limit_s: float | None = None
    ) -> Any:
        """The function's result, or its exception raised here.

        Raises `WorkerGone` when the process ends first; one that does not answer within
        `limit_s` seconds is ended.
        """
        ...

    def close(self) -> None:
        """End the process; a call under way raises `WorkerGone`."""
        ...


def pack(function: Callable[..., Any], arguments: tuple[object, ...]) -> bytes:
    """A call of a function that the other process can import under the same name."""
    return pickle.dumps((function, arguments), protocol=pickle.HIGHEST_PROTOCOL)


def perform(call: bytes) -> bytes:
    """Make a packed call, in the process it was carried to; the outcome, for `result_of`."""
    try:
        function, arguments = pickle.loads(call)
        outcome = True, function(*arguments)
    except Exception as error:
        outcome = False, _portable(error)
    return pickle.dumps(outcome, protocol=pickle.HIGHEST_PROTOCOL)


def result_of(outcome: bytes) -> Any:
    """What the call returned. Raises what the call raised."""
    succeeded, value = pickle.loads(outcome)
    if not succeeded:
        assert isinstance(value, Exception)
        raise value
    return value


def _portable(error: Exception) -> Exception:
    """The error, or its words where it does not come through pickling."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
