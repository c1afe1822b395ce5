"""Processes that work off a queue, where one that dies takes only its own item with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ssd_aot.compilation.threads import limit_threads

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class WorkerDied:
    """Stands for the result of an item whose process ended while it worked on it alone; `where`
    says which processes, where they were on other machines."""

    where: str = ""


class ExecutorLost(BrokenExecutor):
    """An executor broke through no fault of what it was given."""


def work_off(
    work: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    jobs: int,
    scratch: Path,
    executor: Executor | None = None,
) -> Generator[tuple[Item, Result | WorkerDied], None, None]:
    """Yields each item with the result of `work(item)`, as they finish, in `jobs` processes.

    The processes are forked, so that what is imported here is imported there, and keep their
    temporary files in `scratch`. They end when the generator is closed, and when this process
    ends, however it does. Exceptions of `work` are raised here. When a process dies, the items
    that were under way are tried again one by one, which finds the one that is at fault.

    `executor` replaces the processes of this machine until it breaks; then there are no more of
    them than cores. It may give a `WorkerDied` for an item that it found at fault itself.
    """
    queue = deque(items)
    while queue:
        if executor is not None:
            suspects = yield from _drain(executor, work, queue, jobs)
            executor, jobs = None, min(jobs, len(os.sched_getaffinity(0)))
        else:
            with _forked(min(jobs, len(queue)), scratch) as pool:
                suspects = yield from _drain(pool, work, queue, jobs)
        for item in suspects:
            with _forked(1, scratch) as pool:
                died = yield from _drain(pool, work, deque([item]), 1)
            if died:
                yield item, WorkerDied()


def _drain(
    executor: Executor, work: Callable[[Item], Result], queue: deque[Item], jobs: int
) -> Generator[tuple[Item, Result], None, list[Item]]:
    """Works until the queue is empty or the executor breaks; returns what was under way then and
    may have broken it.

    No more than `jobs` items are handed over at a time, so that few are under suspicion.
    """
    waiting: dict[Future[Result], Item] = {}
    suspects: list[Item] = []
    lost = False
    while (queue and not suspects and not lost) or waiting:
        while queue and not suspects and not lost and len(waiting) < jobs:
            item = queue.popleft()
            try:
                waiting[executor.submit(work, item)] = item
            except BrokenExecutor:
                # It broke between two items, and this one was never begun.
                queue.appendleft(item)
                if not waiting:
                    return suspects
                break
        done, _ = wait(waiting, return_when=FIRST_COMPLETED)
        for future in done:
            item = waiting.pop(future)
            error = future.exception()
            if isinstance(error, ExecutorLost):
                lost = True
                queue.appendleft(item)
            elif isinstance(error, BrokenExecutor):
                suspects.append(item)
            else:
                yield item, future.result()
    return suspects


@contextmanager
def _forked(jobs: int, scratch: Path) -> Iterator[Executor]:
    # Nothing is ever written to this pipe. Its writing end closes when the work is given up, and
    # also when this process is killed; either way the workers read the end of it and go.
    alive_reader, alive_writer = os.pipe()
    pool = ProcessPoolExecutor(
        jobs,
        mp_context=multiprocessing.get_context("fork"),
        initializer=_begin,
        initargs=(alive_reader, alive_writer, str(scratch)),
    )
    try:
        yield pool
        pool.shutdown()
    finally:
        os.close(alive_writer)
        pool.shutdown(cancel_futures=True)
        os.close(alive_reader)


def _begin(alive_reader: int, alive_writer: int, scratch: str) -> None:
    os.close(alive_writer)
    # Ctrl-C reaches the whole process group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit_threads()
    tempfile.tempdir = scratch
    threading.Thread(target=_leave_with_parent, args=(alive_reader,), daemon=True).start()


def _leave_with_parent(alive_reader: int) -> None:
    os.read(alive_reader, 1)
    os._exit(1)
