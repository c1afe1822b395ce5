"""A process of this machine that makes one call at a time for this one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from ssd_aot.compilation.calling import WorkerGone, pack, perform, result_of

_END_S = 5.0
"""How long a process gets between being asked to end and being killed."""


class SpawnedWorker:
    """Started afresh and not forked, since a GPU's context does not survive a fork. It ends when
    it is closed and when this process ends, however that does."""

    def __init__(self, name: str) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._ending = threading.Lock()
        self._process = context.Process(target=_serve, args=(theirs,), name=name, daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def call(
        self, function: Callable[..., Any], *arguments: object, limit_s: float | None = None
    ) -> Any:
        """As in `Worker`."""
        try:
            self._connection.send_bytes(pack(function, arguments))
            if not self._connection.poll(limit_s):
                self._process.kill()
                raise WorkerGone(f"no answer within {limit_s:.0f} s")
            outcome = self._connection.recv_bytes()
        except (OSError, EOFError) as error:
            raise WorkerGone(self._end()) from error
        return result_of(outcome)

    def close(self) -> None:
        # The connection stays open: another thread may be waiting at it, and sees it end.
        with self._ending:
            if self._process.is_alive():
                self._process.terminate()
                self._process.join(_END_S)
                if self._process.is_alive():
                    self._process.kill()
                    self._process.join()

    def _end(self) -> str:
        with self._ending:
            self._process.join(_END_S)
            code = self._process.exitcode
        if code is not None and code < 0:
            with suppress(ValueError):
                return f"process {self.pid} was ended by {signal.Signals(-code).name}"
        return f"process {self.pid} ended with code {code}"


def _serve(connection: Connection) -> None:
    # Ctrl-C reaches the whole process group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=leave_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            connection.send_bytes(perform(connection.recv_bytes()))


def leave_with_parent() -> None:
    """Ends this process, which was spawned, when the one that spawned it ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
