"""Many variants to code objects."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import heed_interrupts
from test_build_cache import file_size_limit
from test_triton_compat import B200, B300, H100, MATMUL, ptxas_of_release

import ssd_aot.compilation.compiling
from ssd_aot.compilation.build_cache import BuildCache
from ssd_aot.compilation.compiling import CompileTask, compile_all
from ssd_aot.errors import HostError
from ssd_aot.launches import Argument, Configuration, Launch, Variant
from ssd_aot.progress import Progress
from ssd_aot.targets import Target
from ssd_aot.triton_compat import CompiledObject, compile_variant, layout_can_be_fixed

TESTS = Path(__file__).parent


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[BuildCache]:
    with BuildCache.beside(tmp_path / "out") as cache:
        yield cache


def matmul(block: int = 32, stages: int = 2, warps: int = 4, target: Target = H100) -> CompileTask:
    configuration = Configuration((("BLOCK", block),), warps, stages)
    return CompileTask("fixture_kernels:matmul", Variant(MATMUL.launch, configuration), target)


def one_pointer(
    kernel: str, block: int, maxnreg: int | None = None, target: Target = H100
) -> CompileTask:
    launch = Launch(kernel, (), (Argument("x_ptr", "*fp32", "aligned"),))
    configuration = Configuration((("BLOCK", block),), 4, 3, maxnreg)
    return CompileTask(f"fixture_kernels:{kernel}", Variant(launch, configuration), target)


SEVERAL = [
    matmul(block, stages, target=target)
    for block in (32, 64)
    for stages in (1, 2)
    for target in (H100, B200, B300)
]


@pytest.mark.skipif(not layout_can_be_fixed(), reason="address randomisation cannot be turned off")
def test_the_result_is_the_same_whatever_the_jobs_and_the_order(tmp_path: Path) -> None:
    with BuildCache.beside(tmp_path / "one") as first, BuildCache.beside(tmp_path / "x/2") as other:
        alone = compile_all(SEVERAL, jobs=1, cache=first)
        together = compile_all(SEVERAL[::-1], jobs=2, cache=other)

    assert alone.compiled == together.compiled
    assert len(alone.compiled) == len(SEVERAL)
    assert alone.reproducible


def test_what_is_compiled_already_is_not_compiled_again(cache: BuildCache) -> None:
    first = compile_all(SEVERAL[:4], jobs=2, cache=cache)
    again = compile_all(SEVERAL[:4], jobs=2, cache=cache)

    assert (first.fresh, first.reused) == (4, 0)
    assert (again.fresh, again.reused) == (0, 4)
    assert again.compiled == first.compiled
    assert again.elapsed_s < 2


def test_an_entry_that_was_damaged_is_compiled_again(cache: BuildCache) -> None:
    first = compile_all(SEVERAL[:3], jobs=2, cache=cache)
    damaged = next((cache.folder / "entries").iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-1])

    again = compile_all(SEVERAL[:3], jobs=2, cache=cache)

    assert (again.fresh, again.reused) == (1, 2)
    assert [made.task for made in again.compiled] == [made.task for made in first.compiled]


def test_models_of_one_architecture_share_a_compilation(cache: BuildCache) -> None:
    h200 = replace(H100, name="h200")

    result = compile_all([matmul(), matmul(target=h200)], jobs=2, cache=cache)

    assert result.fresh == 1
    assert [made.task.target.name for made in result.compiled] == ["h100", "h200"]


def test_each_failure_is_named_with_its_reason_and_the_rest_is_compiled(cache: BuildCache) -> None:
    tasks = [
        one_pointer("does_not_compile", 64),
        one_pointer("fails_in_ptxas", 64),
        CompileTask("fixture_kernels:absent", MATMUL, H100),
        matmul(),
    ]

    result = compile_all(tasks, jobs=2, cache=cache)

    reasons = {failure.task.kernel.split(":")[1]: failure.reason for failure in result.failures}
    assert "the block is too small" in reasons["does_not_compile"]
    assert "Not a name of any known instruction" in reasons["fails_in_ptxas"]
    assert "there is no such kernel" in reasons["absent"]
    assert [made.task for made in result.compiled] == [matmul()]


@pytest.mark.parametrize("end", ["killed", "out of memory"])
def test_a_task_that_ends_its_process_or_exhausts_memory_fails_alone(
    cache: BuildCache, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    def compile_or_end(function: object, variant: Variant, target: Target) -> CompiledObject:
        if dict(variant.configuration.constexprs)["BLOCK"] == 64:
            if end == "out of memory":
                raise MemoryError
            os.kill(os.getpid(), signal.SIGKILL)
        return compile_variant(function, variant, target)

    # The workers are forked, so they have it too.
    monkeypatch.setattr(ssd_aot.compilation.compiling, "compile_variant", compile_or_end)
    tasks = [matmul(), matmul(64), matmul(stages=1), matmul(stages=3)]

    result = compile_all(tasks, jobs=2, cache=cache)

    (failure,) = result.failures
    assert failure.task == matmul(64)
    assert "out of memory" in failure.reason
    assert len(result.compiled) == 3


def test_shared_memory_is_judged_by_the_limit_of_the_target(cache: BuildCache) -> None:
    small = Target("rtx-5090", "sm_120a", (12, 0), 101376, 170)
    roomy = replace(small, name="roomy", shared_bytes_optin=300_000)
    tasks = [matmul(128, 4, 8, target) for target in (small, roomy)]

    result = compile_all(tasks, jobs=1, cache=cache)

    (refused,) = result.unfit
    assert refused.limit_bytes == 101376
    assert refused.needs_bytes > 101376
    assert f"needs {refused.needs_bytes} bytes" in str(refused)
    assert "rtx-5090 allows 101376" in str(refused)
    assert [made.task.target.name for made in result.compiled] == ["roomy"]


def test_spills_beyond_the_threshold_are_a_failure(cache: BuildCache) -> None:
    tasks = [one_pointer("hungry", 16384, maxnreg=32), one_pointer("hungry", 8192)]

    allowed = compile_all(tasks, jobs=2, cache=cache)
    limited = compile_all(tasks, jobs=2, cache=cache, max_spill_bytes=64)

    spills = sorted(made.object.code.spill_bytes for made in allowed.compiled)
    assert spills[0] == 0
    (failure,) = limited.failures
    assert failure.reason == f"spills {spills[1]} bytes a thread, allowed are 64"


def test_an_old_ptxas_is_found_before_anything_is_compiled(
    cache: BuildCache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRITON_PTXAS_BLACKWELL_PATH", ptxas_of_release(tmp_path / "old", "12.6"))

    with pytest.raises(HostError, match="ptxas is too old for sm_100a"):
        compile_all([matmul(target=B200)], jobs=1, cache=cache)

    assert list((cache.folder / "entries").iterdir()) == []


def test_without_room_the_build_stops_and_the_next_continues(cache: BuildCache) -> None:
    compile_all(SEVERAL[:2], jobs=1, cache=cache)
    with file_size_limit(2000), pytest.raises(HostError) as caught:
        compile_all(SEVERAL[:4], jobs=2, cache=cache)
    assert caught.value.exit_code == 3
    assert str(cache.folder) in str(caught.value)

    result = compile_all(SEVERAL[:4], jobs=2, cache=cache)

    assert (result.fresh, result.reused) == (2, 2)


def test_progress_counts_what_is_done_and_what_failed(cache: BuildCache) -> None:
    seen: list[Progress] = []
    tasks = [matmul(), one_pointer("does_not_compile", 64)]

    compile_all(tasks, jobs=1, cache=cache, on_progress=seen.append)

    assert [(step.done, step.total) for step in seen] == [(1, 2), (2, 2)]
    assert seen[-1].failed == 1


def test_the_heaviest_task_starts_first(cache: BuildCache) -> None:
    light, heavy = one_pointer("does_not_compile", 64), replace(matmul(), weight=9.0)
    seen: list[Progress] = []

    compile_all([light, heavy], jobs=1, cache=cache, on_progress=seen.append)

    assert [step.failed for step in seen] == [0, 1]


def test_another_executor_compiles_the_same(cache: BuildCache) -> None:
    with ProcessPoolExecutor(1) as executor:
        result = compile_all([matmul()], jobs=2, cache=cache, executor=executor)

    assert len(result.compiled) == 1


BUILD = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from test_compiling import SEVERAL
from ssd_aot.compilation.build_cache import BuildCache
from ssd_aot.compilation.compiling import compile_all
with BuildCache.beside(Path(sys.argv[2])) as cache:
    compile_all(SEVERAL, jobs=2, cache=cache, on_progress=lambda step: print(step, flush=True))
"""


@pytest.mark.parametrize("ended_by", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_build_that_is_ended_continues_where_it_was(
    tmp_path: Path, ended_by: signal.Signals
) -> None:
    build = subprocess.Popen(
        [sys.executable, "-c", BUILD, str(TESTS), str(tmp_path / "out")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(TESTS.parent)},
        preexec_fn=heed_interrupts,
    )
    with build:
        assert build.stdout is not None
        for _ in range(4):
            build.stdout.readline()
        ended = time.monotonic()
        build.send_signal(ended_by)
        # Its workers hold the other end of the pipe until they have gone.
        build.stdout.read()
    assert time.monotonic() - ended < 5
    assert build.returncode != 0

    with BuildCache.beside(tmp_path / "out") as cache:
        kept = len(list((cache.folder / "entries").iterdir()))
        result = compile_all(SEVERAL, jobs=2, cache=cache)

    assert 4 <= kept < len(SEVERAL)
    assert (result.fresh, result.reused) == (len(SEVERAL) - kept, kept)
    assert len(result.compiled) == len(SEVERAL)
