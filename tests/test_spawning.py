"""Processes that make one call at a time."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from ssd_aot.compilation.calling import WorkerGone
from ssd_aot.compilation.spawning import SpawnedWorker
from ssd_aot.errors import HostError


@pytest.fixture
def worker() -> Iterator[SpawnedWorker]:
    made = SpawnedWorker("GPU 3")
    yield made
    made.close()


class Unportable(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def raises(error: Exception) -> None:
    raise error


def raises_unportable() -> None:
    raise Unportable(1, 2)


def test_calls_are_made_in_one_other_process(worker: SpawnedWorker) -> None:
    assert worker.call(os.getpid) == worker.call(os.getpid) == worker.pid != os.getpid()
    assert worker.call(pow, 2, 10) == 1024


def test_the_exception_of_a_call_is_raised_here_and_the_process_goes_on(
    worker: SpawnedWorker,
) -> None:
    with pytest.raises(HostError, match="no GPU") as caught:
        worker.call(raises, HostError("no GPU", where="tune", mend="buy one"))
    with pytest.raises(RuntimeError, match="Unportable: 1 and 2"):
        worker.call(raises_unportable)

    assert caught.value.mend == "buy one"
    assert worker.call(pow, 2, 2) == 4


def test_a_process_that_is_killed_is_gone_with_the_signal_named(worker: SpawnedWorker) -> None:
    pid = worker.pid

    with pytest.raises(WorkerGone, match=f"process {pid} was ended by SIGKILL"):
        worker.call(os.kill, pid, signal.SIGKILL)


def test_a_process_that_exits_is_gone_with_its_code(worker: SpawnedWorker) -> None:
    with pytest.raises(WorkerGone, match="ended with code 7"):
        worker.call(os._exit, 7)


def test_a_call_without_an_answer_is_ended_at_its_limit(worker: SpawnedWorker) -> None:
    worker.call(pow, 2, 2)

    with pytest.raises(WorkerGone, match=r"no answer within 1 s"):
        worker.call(time.sleep, 3600, limit_s=1.0)

    with pytest.raises(WorkerGone):
        worker.call(pow, 2, 2)


def test_closing_ends_a_call_that_another_thread_waits_for(worker: SpawnedWorker) -> None:
    ended: list[str] = []

    def wait() -> None:
        try:
            worker.call(time.sleep, 3600)
        except WorkerGone as gone:
            ended.append(str(gone))

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.2)
    worker.close()
    waiting.join(10)

    assert len(ended) == 1 and "SIGTERM" in ended[0]
