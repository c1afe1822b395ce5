"""The process that is connected to a Ray cluster, and does there what this process asks.

Ray ends a driver that has lost its cluster for a minute, whatever that driver was doing. So the
driver is a process of its own: when it goes, the one that builds or tunes reads the end of a pipe,
says so and goes on.

Requests are `(number, verb, *arguments)`, answers `(number, ANSWER, content)`; each request has one
answer, in any order.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from multiprocessing.connection import Connection
from typing import Any

from ssd_aot.compilation.spawning import leave_with_parent

VALUE, GONE, FAILED = "value", "gone", "failed"
"""What an answer brings: a result, the reason why a worker ended, or that of another failure."""

_IDENTITY_LINES = ("class_name:", "actor_id:", "pid:", "namespace:", "ip:")
"""Lines of Ray's messages that say which worker it was, which is known."""

_GUESSES = re.compile(r"There are some potential root causes|Some common causes include")
"""Ahead of a list of what may end any process."""


def serve(connection: Connection, address: str, log: str) -> None:
    """The process's work, until the pipe ends. What Ray prints goes to the file `log`."""
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    # Ctrl-C reaches the whole process group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=leave_with_parent, daemon=True).start()
    import ray

    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:
        # In place of a traceback: the end of the file is what people are told.
        os.write(output, f"{type(error).__name__}: {error}\n".encode())
        os._exit(1)
    envoy = _Envoy(connection, ray)
    try:
        while True:
            number, verb, *arguments = connection.recv()
            envoy.answer(number, verb, arguments)
    except (EOFError, OSError):
        # Workers end with their driver.
        os._exit(0)


class _Envoy:
    def __init__(self, connection: Connection, ray: Any) -> None:
        self._connection = connection
        self._ray = ray
        self._sending = threading.Lock()
        self._worker_class = ray.remote(_worker_class())
        self._workers: dict[int, Any] = {}

    def answer(self, number: int, verb: str, arguments: list[Any]) -> None:
        try:
            if verb == "nodes":
                self._send(number, VALUE, self._ray.nodes())
            elif verb == "open":
                self._open(number, *arguments)
            elif verb == "call":
                worker, call = arguments
                self._send_when_done(number, self._workers[worker].run.remote(call))
            elif verb == "close":
                worker = self._workers.pop(arguments[0], None)
                if worker is not None:
                    self._ray.kill(worker, no_restart=True)
                self._send(number, VALUE, None)
        except Exception as error:
            self._send(number, FAILED, f"{type(error).__name__}: {error}")

    def _open(self, number: int, node: str, cpus: float, gpus: float) -> None:
        """A worker on a node, by the request's own number; the answer is its process id."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        worker = self._worker_class.options(
            num_cpus=cpus,
            num_gpus=gpus,
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        ).remote()
        self._workers[number] = worker
        self._send_when_done(number, worker.process_id.remote())

    def _send_when_done(self, number: int, reference: Any) -> None:
        def send(future: Any) -> None:
            error = future.exception()
            if error is None:
                self._send(number, VALUE, future.result())
            elif isinstance(error, self._ray.exceptions.RayTaskError):
                self._send(number, FAILED, str(error).strip().splitlines()[-1])
            else:
                self._send(number, GONE, _reason(error))

        reference.future().add_done_callback(send)

    def _send(self, number: int, kind: str, content: Any) -> None:
        with self._sending:
            try:
                self._connection.send((number, kind, content))
            except OSError:
                os._exit(0)


def _worker_class() -> type:
    # Inside a function, so that it travels by value: a node without this package can still say so.
    class SsdAotWorker:
        def process_id(self) -> int:
            import contextlib
            import os

            # Without this package the first call says so.
            with contextlib.suppress(ImportError):
                from ssd_aot.compilation.threads import limit_threads

                limit_threads()
            return os.getpid()

        def run(self, call: bytes) -> bytes:
            from ssd_aot.cluster.scratch import own_scratch
            from ssd_aot.compilation.calling import perform

            with own_scratch():
                return perform(call)

    return SsdAotWorker


def _reason(error: BaseException) -> str:
    """Why a worker ended, in one line."""
    lines = (line.strip() for line in str(error).splitlines())
    said = " ".join(line for line in lines if line and not line.startswith(_IDENTITY_LINES))
    return f"{type(error).__name__}: {_GUESSES.split(said)[0].strip()}"
