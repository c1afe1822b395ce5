"""One thread a worker: as many processes as wanted run already, and more would only contend."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

_LIMITS = {"OMP_NUM_THREADS": "1", "MLIR_DISABLE_MULTITHREADING": "1"}
_limited: dict[str, str | None] = {}


def limit_threads() -> None:
    """Tell the compiler's libraries in this process, which is a worker, to start no threads."""
    for name, value in _LIMITS.items():
        _limited.setdefault(name, os.environ.get(name))
        os.environ[name] = value


@contextmanager
def environment_of_the_user() -> Iterator[None]:
    """The environment without the limits, until the end of the block: Triton's keys hold some of
    it, `MLIR_DISABLE_MULTITHREADING` among them (3.6.0 to 3.9.0)."""
    with mock.patch.dict(os.environ):
        for name, value in _limited.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        yield
