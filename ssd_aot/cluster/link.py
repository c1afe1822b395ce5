"""This process's end of the pipe to the process that is connected to a Ray cluster."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import re
import socket
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from ssd_aot.cluster import envoy
from ssd_aot.compilation.calling import WorkerGone, pack, result_of
from ssd_aot.errors import HostError

AUTO = "auto"
"""Ray's own word for: the cluster that RAY_ADDRESS names, else the one that runs on this host."""

CONNECT_LIMIT_S = 90.0
"""For importing Ray and finding the cluster, where something answers at its address."""

_END_S = 10.0
_TAIL_LINES = 3
_SAID_CHARACTERS = 300
_LOG_PREFIX = re.compile(r"\[[^\]]*\] (?:\(\w+\) )?\S+:\d+: ")
"""Time, level, process and place of a line that Ray's own libraries log."""
_ACCELERATOR = "accelerator_type:"


class ClusterLost(HostError):
    """The connection to the Ray cluster ended, or could not be made."""


class NodeFailure(WorkerGone):
    """A worker cannot be had on a node, or not be spoken to: nothing that a call did."""


@dataclass(frozen=True)
class Node:
    """A node of the cluster. `accelerators` are Ray's names of its GPU models."""

    id: str
    host: str
    address: str
    alive: bool
    cpus: int
    gpus: int
    accelerators: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.host} ({self.address}, {self.id[:8]})"

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Node:
        """From what `ray.nodes()` tells of it."""
        resources = facts.get("Resources", {})
        return cls(
            id=facts["NodeID"],
            host=facts["NodeManagerHostname"],
            address=facts["NodeManagerAddress"],
            alive=facts["Alive"],
            cpus=int(resources.get("CPU", 0)),
            gpus=int(resources.get("GPU", 0)),
            accelerators=tuple(
                sorted(
                    name.removeprefix(_ACCELERATOR)
                    for name in resources
                    if name.startswith(_ACCELERATOR)
                )
            ),
        )


class Link:
    """A connection to the cluster at `address`, in Ray's own forms: `host:port`, `ray://…`, `auto`.

    Raises `ClusterLost` where there is none, `HostError` without Ray.
    """

    def __init__(self, address: str | None = None) -> None:
        if find_spec("ray") is None:
            raise HostError(
                "Ray is not installed",
                where="--workers ray",
                wanted="the package `ray`, of the cluster's version",
                mend="pip install 'ssd-aot[ray]'",
            )
        self.address = address or os.environ.get("RAY_ADDRESS") or AUTO
        refusal = _refusal(self.address)
        if refusal:
            raise self._error(refusal)
        self._said, path = tempfile.mkstemp(prefix="ssd-aot-ray-")
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=envoy.serve, args=(theirs, self.address, path), daemon=True
        )
        self._process.start()
        theirs.close()
        self._sending = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Any]] = {}
        self._lost = ""
        self._closing = False
        threading.Thread(target=self._receive, daemon=True).start()
        try:
            self._request("nodes").result(CONNECT_LIMIT_S)
        except TimeoutError:
            self.close()
            raise self._error(f"no answer within {CONNECT_LIMIT_S:.0f} s") from None
        except BaseException:
            self.close()
            raise
        finally:
            # Both ends have it open, so nothing is left of it, however they end.
            os.unlink(path)

    def nodes(self) -> list[Node]:
        """The nodes that are alive, in an order that does not change."""
        nodes = [Node.of(facts) for facts in self._request("nodes").result()]
        return sorted((n for n in nodes if n.alive), key=lambda n: (n.host, n.address, n.id))

    def open(self, node: Node, *, cpus: float = 0, gpus: float = 0) -> ClusterWorker:
        """A worker that a node will start once it has the CPUs and GPUs free."""
        return ClusterWorker(self, node, *self._numbered("open", node.id, cpus, gpus))

    def call(self, worker: int, call: bytes) -> Future[Any]:
        return self._request("call", worker, call)

    def close_worker(self, worker: int) -> None:
        with suppress(ClusterLost):
            self._request("close", worker)

    def close(self) -> None:
        """End the connection, and with it every worker."""
        self._closing = True
        self._process.terminate()
        self._process.join(_END_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _request(self, verb: str, *arguments: Any) -> Future[Any]:
        return self._numbered(verb, *arguments)[1]

    def _numbered(self, verb: str, *arguments: Any) -> tuple[int, Future[Any]]:
        number, answer = next(self._numbers), Future[Any]()
        with self._sending:
            if self._lost:
                raise self._error(self._lost)
            self._waiting[number] = answer
            # Where it fails, the other end is gone, and `_receive` answers.
            with suppress(OSError):
                self._connection.send((number, verb, *arguments))
        return number, answer

    def _receive(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                number, kind, content = self._connection.recv()
                answer = self._waiting.pop(number)
                if kind == envoy.VALUE:
                    answer.set_result(content)
                else:
                    error = WorkerGone if kind == envoy.GONE else NodeFailure
                    answer.set_exception(error(content))
        self._process.join()
        with self._sending:
            self._lost = "it was closed" if self._closing else self._last_words()
            waiting, self._waiting = self._waiting, {}
        os.close(self._said)
        for answer in waiting.values():
            answer.set_exception(self._error(self._lost))

    def _last_words(self) -> str:
        """The end of what Ray said before it ended the connected process."""
        text = os.pread(self._said, 2**20, 0).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        said = _LOG_PREFIX.sub("", " ".join(lines[-_TAIL_LINES:]))[:_SAID_CHARACTERS]
        return said or f"the connected process ended with code {self._process.exitcode}"

    def _error(self, found: str) -> ClusterLost:
        return ClusterLost(
            "no connection to the Ray cluster",
            where=self.address,
            found=found,
            wanted="a running cluster of this host's Ray and Python",
            mend="start one (ray start --head), or name it: --ray-address HOST:PORT, RAY_ADDRESS",
        )


class ClusterWorker:
    """A process on a node; see `calling.Worker`. `started` is its process id, once it runs."""

    def __init__(self, link: Link, node: Node, number: int, started: Future[int]) -> None:
        self.node = node
        self.started = started
        self._link = link
        self._number = number

    @property
    def name(self) -> str:
        pid = self.started.result() if self.started.done() else "starting"
        return f"{self.node} process {pid}"

    def call(
        self, function: Callable[..., Any], *arguments: object, limit_s: float | None = None
    ) -> Any:
        """As in `Worker`. Raises `NodeFailure` where the node cannot make the call at all, and
        `ClusterLost`."""
        answer = self._link.call(self._number, pack(function, arguments))
        try:
            return result_of(answer.result(limit_s))
        except TimeoutError:
            if not answer.done():
                self.close()
                raise WorkerGone(f"no answer within {limit_s:.0f} s") from None
            raise

    def close(self) -> None:
        self._link.close_worker(self._number)


def _refusal(address: str) -> str:
    """Why nothing can be at `host:port`, which Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or "/" in address or not port.isdigit():
        return ""
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_LIMIT_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""
