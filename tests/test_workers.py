"""Processes that work off a queue."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from ssd_aot.compilation.workers import WorkerDied, work_off


def square(number: int) -> int:
    return number * number


def square_or_die(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def process_id(number: int) -> int:
    time.sleep(0.05)
    return os.getpid()


def fail(number: int) -> int:
    raise OSError(28, "No space left on device")


def test_every_item_comes_back_with_its_result(tmp_path: Path) -> None:
    assert dict(work_off(square, range(20), jobs=3, scratch=tmp_path)) == {
        number: number**2 for number in range(20)
    }


def test_an_item_that_kills_its_process_is_found_and_the_others_are_done(tmp_path: Path) -> None:
    results = dict(work_off(square_or_die, range(8), jobs=2, scratch=tmp_path))

    assert isinstance(results.pop(3), WorkerDied)
    assert results == {number: number**2 for number in range(8) if number != 3}


def test_an_exception_of_the_work_is_raised_here(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        list(work_off(fail, range(3), jobs=2, scratch=tmp_path))


def test_the_processes_are_gone_when_the_work_is_given_up(tmp_path: Path) -> None:
    results = work_off(process_id, range(100), jobs=2, scratch=tmp_path)
    pids = {next(results)[1], next(results)[1]}
    results.close()

    for pid in pids:
        assert isinstance(pid, int)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_another_executor_can_do_the_work(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1) as executor:
        pids = work_off(process_id, range(4), jobs=2, scratch=tmp_path, executor=executor)
        assert len({pid for _, pid in pids}) == 1
