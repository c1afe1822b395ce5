"""Compilations on a cluster, behind the interface of `concurrent.futures.Executor`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ssd_aot.cluster.link import ClusterLost, ClusterWorker, Link, Node, NodeFailure
from ssd_aot.compilation.calling import WorkerGone
from ssd_aot.compilation.workers import ExecutorLost, WorkerDied
from ssd_aot.errors import HostError

Result = TypeVar("Result")

ATTEMPTS = 2
"""A worker may have been killed from outside: what it had is tried once more, elsewhere."""

WAITING_S = 30.0
"""After how long without any worker it is said that the cluster is busy."""

_LOOK_S = 10.0
"""How often a worker that does not start has its node looked for."""


@dataclass(eq=False)
class _Item:
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    future: Future[Any]
    deaths: list[str] = field(default_factory=list)
    died_on: set[str] = field(default_factory=set)


class ClusterExecutor(Executor):
    """One worker a CPU of the nodes given, `slots` at most, started as there is work for them.

    An item whose worker dies is tried again on another node where there is one; the result of one
    that is alone with its worker each time it dies is a `WorkerDied`. A node that is lost gives
    back what it had. When no node is left, or the connection is lost, futures raise
    `ExecutorLost`. `on_notice` is told of deaths and losses.
    """

    def __init__(
        self,
        link: Link,
        nodes: Sequence[Node],
        *,
        slots: int | None = None,
        on_notice: Callable[[str], None] | None = None,
    ) -> None:
        self._link = link
        self._on_notice = on_notice
        self._places = _in_turn(nodes)[:slots]
        self.slots = len(self._places)
        self._changed = threading.Condition()
        self._items: list[_Item] = []
        self._threads: list[threading.Thread] = []
        self._live: dict[str, int] = {}
        self._idle = 0
        self._open = 0
        self._lost = ""
        self._told: set[str] = set()
        self._closed = False

    def submit(
        self, function: Callable[..., Result], /, *arguments: Any, **named: Any
    ) -> Future[Result]:
        assert not named, "calls travel with positional arguments alone"
        future: Future[Result] = Future()
        with self._changed:
            if self._lost:
                raise ExecutorLost(self._lost)
            if self._closed:
                raise RuntimeError("the executor was shut down")
            self._items.append(_Item(function, arguments, future))
            if self._idle < len(self._items) and self._places:
                self._start(self._places.pop(0))
            self._changed.notify()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """With `cancel_futures`, what is under way ends with the connection, not by itself."""
        with self._changed:
            self._closed = True
            if cancel_futures:
                for item in self._items:
                    item.future.cancel()
                self._items.clear()
            self._changed.notify_all()
        if wait and not cancel_futures:
            for thread in self._threads:
                thread.join()

    def _start(self, node: Node) -> None:
        thread = threading.Thread(target=self._work, args=(node,), daemon=True)
        self._threads.append(thread)
        self._live[node.id] = self._live.get(node.id, 0) + 1
        thread.start()

    def _work(self, node: Node) -> None:
        """One slot's life: a worker on the node, and another when it dies."""
        reason = ""
        worker: ClusterWorker | None = None
        try:
            worker = self._hire(node)
            while (item := self._take(node)) is not None:
                worker = self._do(worker, item)
        except WorkerGone as error:
            reason = f"{node} was lost: {error}"
        except ClusterLost as error:
            reason = f"the cluster at {self._link.address} was lost: {error.found}"
        if worker is not None:
            worker.close()
        self._leave(node, reason)

    def _hire(self, node: Node) -> ClusterWorker:
        """A worker that has started. Raises `NodeFailure` when its node is gone before that."""
        worker = self._link.open(node, cpus=1)
        waited = 0.0
        while True:
            try:
                worker.started.result(_LOOK_S)
            except TimeoutError:
                waited += _LOOK_S
            else:
                with self._changed:
                    self._open += 1
                return worker
            if node.id not in {one.id for one in self._link.nodes()}:
                worker.close()
                raise NodeFailure("the node left the cluster")
            if self._closed:
                worker.close()
                raise NodeFailure("closed before it began")
            if waited == WAITING_S and not self._open:
                self._tell(f"{node}: waiting for a free CPU")

    def _take(self, node: Node) -> _Item | None:
        """The next item, preferring one that did not die on this node; None when there will be
        no more."""
        with self._changed:
            while True:
                elsewhere = len(self._live) > 1
                for item in self._items:
                    if node.id not in item.died_on or not elsewhere:
                        self._items.remove(item)
                        if item.future.running() or item.future.set_running_or_notify_cancel():
                            return item
                        break
                else:
                    if self._closed and not self._items:
                        return None
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1

    def _do(self, worker: ClusterWorker, item: _Item) -> ClusterWorker:
        """Bring the item's future to an end, or put the item back; the worker to go on with."""
        try:
            result = worker.call(item.function, *item.arguments)
        except (NodeFailure, ClusterLost):
            self._put_back(item)
            raise
        except WorkerGone as gone:
            name, node = worker.name, worker.node
            try:
                worker = self._hire(node)
            except (WorkerGone, ClusterLost):
                # It went with its node, which says nothing about the item.
                self._put_back(item)
                raise
            item.deaths.append(f"{name}: {gone}")
            item.died_on.add(node.id)
            if len(item.deaths) < ATTEMPTS:
                self._tell(f"{name} died ({gone}); what it compiled is tried elsewhere")
                self._put_back(item)
            else:
                item.future.set_result(WorkerDied("; ".join(item.deaths)))
        except OSError as error:
            item.future.set_exception(_node_error(worker.node, error))
        except Exception as error:
            item.future.set_exception(error)
        else:
            item.future.set_result(result)
        return worker

    def _put_back(self, item: _Item) -> None:
        with self._changed:
            self._items.insert(0, item)
            self._changed.notify_all()

    def _leave(self, node: Node, reason: str) -> None:
        """A slot's end, for a `reason` unless there was nothing left to do. Another place takes
        over; where there is none and no slot lives, the executor is lost."""
        orphans: list[_Item] = []
        with self._changed:
            self._live[node.id] -= 1
            if not self._live[node.id]:
                del self._live[node.id]
            if reason and not self._closed:
                if self._items and self._places:
                    self._start(self._places.pop(0))
                if not self._live:
                    self._lost = reason
                    orphans, self._items = self._items, []
            self._changed.notify_all()
        if reason and not self._closed:
            self._tell(reason)
        for item in orphans:
            item.future.set_exception(ExecutorLost(reason))

    def _tell(self, text: str) -> None:
        with self._changed:
            if text in self._told:
                return
            self._told.add(text)
        if self._on_notice is not None:
            self._on_notice(text)


def _in_turn(nodes: Sequence[Node]) -> list[Node]:
    """A place for each CPU, the nodes' in turn, so that few slots are spread over many nodes."""
    most = max((node.cpus for node in nodes), default=0)
    return [node for turn in range(most) for node in nodes if turn < node.cpus]


def _node_error(node: Node, error: OSError) -> HostError:
    return HostError(
        "a node of the cluster cannot write its temporary files",
        where=str(node),
        found=error.strerror or str(error),
        mend="free space there and run again: what is compiled is kept",
    )
