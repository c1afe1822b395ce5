"""Variants to code objects: in parallel processes, resumable, every outcome accounted for."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import closing
from dataclasses import dataclass

from ssd_aot.bundle.manifest import Toolchain
from ssd_aot.compilation.build_cache import BuildCache, entry_key
from ssd_aot.compilation.workers import WorkerDied, work_off
from ssd_aot.errors import SsdAotError
from ssd_aot.launches import Variant
from ssd_aot.progress import Progress
from ssd_aot.targets import Target
from ssd_aot.triton_compat import (
    CompiledObject,
    check_ptxas,
    compile_entry,
    compile_variant,
    kernel_function,
    layout_can_be_fixed,
    source_hash,
    toolchain,
    warm_up,
)
from ssd_aot.writing import NO_ROOM, write_error

_DIED = "the process that compiled it was killed: out of memory, or a crash of the compiler"


@dataclass(frozen=True)
class CompileTask:
    """One compilation: `kernel` is "module:function"; heavier tasks (any unit) start first.

    An engine's kernel comes with the hash of its source, `source_sha256`, and with `triton_key`,
    under which its entry in Triton's cache will be asked for; its workers have the engine imported.
    """

    kernel: str
    variant: Variant
    target: Target
    weight: float = 0.0
    source_sha256: str = ""
    triton_key: str = ""

    @property
    def order(self) -> tuple[str, str]:
        """Tells a task from every other, and sorts results the same whatever finished first."""
        return self.variant.identity, self.target.name

    def __str__(self) -> str:
        variant = self.variant
        return f"{variant.launch} [{variant.configuration}] for {self.target.name}"


@dataclass(frozen=True)
class Compiled:
    """A task with its code, which fits the target."""

    task: CompileTask
    object: CompiledObject


@dataclass(frozen=True)
class Failure:
    """A task that gave no usable code, and why."""

    task: CompileTask
    reason: str

    def __str__(self) -> str:
        return f"{self.task}: {self.reason}"


@dataclass(frozen=True)
class DoesNotFit:
    """A task whose code needs more shared memory a block, in bytes, than its target allows."""

    task: CompileTask
    needs_bytes: int
    limit_bytes: int
    object: CompiledObject | None = None

    def __str__(self) -> str:
        return (
            f"{self.task}: needs {self.needs_bytes} bytes of shared memory, "
            f"{self.task.target.name} allows {self.limit_bytes}"
        )


@dataclass(frozen=True)
class CompileResult:
    """Every task is in exactly one of the three, each sorted by variant and target.

    `fresh` compilations ran now, `reused` tasks were answered from the build cache. Where this
    host does not let ptxas run `reproducible`, another build may choose other registers.
    """

    compiled: tuple[Compiled, ...]
    unfit: tuple[DoesNotFit, ...]
    failures: tuple[Failure, ...]
    fresh: int
    reused: int
    elapsed_s: float
    toolchain: Toolchain
    reproducible: bool


def compile_all(
    tasks: Sequence[CompileTask],
    *,
    jobs: int,
    cache: BuildCache,
    on_progress: Callable[[Progress], None] | None = None,
    executor: Executor | None = None,
    max_spill_bytes: int | None = None,
) -> CompileResult:
    """Compiles every task, or says for each why not; asks no GPU.

    `cache` is entered already. Tasks that come to the same code (models of one architecture) are
    compiled once. Code that spills more than `max_spill_bytes` a thread is a failure. With an
    `executor`, `jobs` compilations are handed to it at a time instead of to processes here.

    Raises HostError, before anything is compiled, when ptxas does not know a target or the
    toolchain cannot be read, and later when there is no room to write.
    """
    began = time.monotonic()
    compiler = toolchain()
    unique = {task.order: task for task in tasks}
    reasons: dict[tuple[str, str], str] = {}
    keys: dict[tuple[str, str], str] = {}
    for order, task in unique.items():
        try:
            kernel = task.source_sha256 or source_hash(kernel_function(task.kernel))
            keys[order] = entry_key(task.variant, task.target, kernel, compiler, task.triton_key)
        except SsdAotError as error:
            reasons[order] = str(error)
    objects, pending = _look_up(unique, keys, cache)
    if pending:
        for target in {task.target.arch: task.target for task in pending.values()}.values():
            check_ptxas(target)
        warm_up()
        made = _compile_pending(pending, jobs, cache, executor, on_progress)
    else:
        made = {}
    for order, key in keys.items():
        outcome = made.get(key)
        if isinstance(outcome, CompiledObject):
            objects[key] = outcome
        elif outcome is not None:
            reasons[order] = outcome
    result = _judge(unique, keys, objects, reasons, max_spill_bytes)
    return CompileResult(
        *result,
        fresh=len(pending),
        reused=sum(key not in pending for key in keys.values()),
        elapsed_s=time.monotonic() - began,
        toolchain=compiler,
        reproducible=layout_can_be_fixed(),
    )


def _look_up(
    unique: dict[tuple[str, str], CompileTask], keys: dict[tuple[str, str], str], cache: BuildCache
) -> tuple[dict[str, CompiledObject], dict[str, CompileTask]]:
    """What the cache has, and one task for each key that it lacks, the heaviest first."""
    objects: dict[str, CompiledObject] = {}
    missing: dict[str, CompileTask] = {}
    for order, key in keys.items():
        if key in objects or key in missing:
            continue
        found = cache.get(key)
        if found is None:
            missing[key] = unique[order]
        else:
            objects[key] = found
    heaviest = sorted(missing.items(), key=lambda item: (-item[1].weight, item[1].order))
    return objects, dict(heaviest)


def _compile_pending(
    pending: dict[str, CompileTask],
    jobs: int,
    cache: BuildCache,
    executor: Executor | None,
    on_progress: Callable[[Progress], None] | None,
) -> dict[str, CompiledObject | str]:
    made: dict[str, CompiledObject | str] = {}
    failed = 0
    began = time.monotonic()
    results = work_off(
        _attempt, pending.items(), jobs=jobs, scratch=cache.scratch, executor=executor
    )
    with closing(results):
        try:
            for (key, task), outcome in results:
                if isinstance(outcome, CompiledObject):
                    cache.put(key, outcome)
                    made[key] = outcome
                else:
                    failed += 1
                    made[key] = _died(outcome) if isinstance(outcome, WorkerDied) else outcome
                if on_progress is not None:
                    elapsed = time.monotonic() - began
                    remaining = elapsed / len(made) * (len(pending) - len(made))
                    piece = str(task)
                    if not isinstance(outcome, CompiledObject):
                        piece += f": {made[key]}"
                    on_progress(
                        Progress(len(made), len(pending), failed, elapsed, remaining, piece=piece)
                    )
        except OSError as error:
            # Of a worker, whose temporary files lie in the same folder.
            raise write_error(error, cache.scratch, 0) from error
    return made


def _died(worker: WorkerDied) -> str:
    return f"{_DIED} ({worker.where})" if worker.where else _DIED


def _attempt(item: tuple[str, CompileTask]) -> CompiledObject | str:
    """Runs in a worker: the code, or the reason there is none."""
    _, task = item
    try:
        function = kernel_function(task.kernel)
        if task.triton_key:
            return compile_entry(function, task.variant, task.target, task.triton_key)
        return compile_variant(function, task.variant, task.target)
    except SsdAotError as error:
        return str(error)
    except MemoryError:
        return "out of memory"
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        return "out of memory" if error.errno == errno.ENOMEM else f"OSError: {error}"


def _judge(
    unique: dict[tuple[str, str], CompileTask],
    keys: dict[tuple[str, str], str],
    objects: dict[str, CompiledObject],
    reasons: dict[tuple[str, str], str],
    max_spill_bytes: int | None,
) -> tuple[tuple[Compiled, ...], tuple[DoesNotFit, ...], tuple[Failure, ...]]:
    """Holds each code against its target's limits, which are not those of the machine here."""
    compiled: list[Compiled] = []
    unfit: list[DoesNotFit] = []
    failures: list[Failure] = []
    for order, task in sorted(unique.items()):
        if order in reasons:
            failures.append(Failure(task, reasons[order]))
            continue
        found = objects[keys[order]]
        code, limit = found.code, task.target.shared_bytes_optin
        if code.shared_bytes > limit:
            unfit.append(DoesNotFit(task, code.shared_bytes, limit, found))
        elif max_spill_bytes is not None and code.spill_bytes > max_spill_bytes:
            reason = f"spills {code.spill_bytes} bytes a thread, allowed are {max_spill_bytes}"
            failures.append(Failure(task, reason))
        else:
            compiled.append(Compiled(task, found))
    return tuple(compiled), tuple(unfit), tuple(failures)
