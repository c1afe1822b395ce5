"""A process in which an engine is imported for one target: it traces, then compiles."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import TracebackType

from ssd_aot.compilation.build_cache import BuildCache
from ssd_aot.compilation.compiling import CompileResult, CompileTask, compile_all
from ssd_aot.engines.recorded import trace_recording
from ssd_aot.engines.serving_calls import ServingBatch
from ssd_aot.engines.tracing import Reached, TracedLaunch, trace_batches, trace_engine
from ssd_aot.progress import ProgressPrinter
from ssd_aot.recording.recorded import Recording
from ssd_aot.signatures import Signature
from ssd_aot.targets import Target


class EngineProcess:
    """One process, forked from this one, which must not have imported the engine.

    What an engine decides at its import stays for the life of a process: each target has its own.
    The processes that compile are forked from it and find the engine imported.
    """

    def __init__(self, engine: str, target: Target) -> None:
        self._engine, self._target = engine, target
        self._pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork"))

    def __enter__(self) -> EngineProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def trace(self, signatures: Sequence[Signature]) -> tuple[TracedLaunch, ...]:
        """See `trace_engine`; called first."""
        return self._pool.submit(trace_engine, self._engine, self._target, signatures).result()

    def trace_batches(self, batches: Sequence[ServingBatch]) -> tuple[Reached, ...]:
        """See `tracing.trace_batches`; called first, in the place of `trace`."""
        return self._pool.submit(trace_batches, self._engine, self._target, batches).result()

    def trace_recording(self, recording: Recording) -> tuple[TracedLaunch, ...]:
        """See `recorded.trace_recording`; called first, in the place of `trace`."""
        return self._pool.submit(trace_recording, recording, self._target).result()

    def compile(
        self,
        tasks: Sequence[CompileTask],
        cache: Path,
        *,
        jobs: int,
        max_spill_bytes: int | None,
        show_progress: bool,
    ) -> CompileResult:
        """See `compile_all`; `cache` is the folder of the build's cache."""
        return self._pool.submit(
            _compile, tuple(tasks), cache, jobs, max_spill_bytes, show_progress
        ).result()


def _compile(
    tasks: tuple[CompileTask, ...],
    folder: Path,
    jobs: int,
    max_spill_bytes: int | None,
    show_progress: bool,
) -> CompileResult:
    with BuildCache(folder) as cache:
        return compile_all(
            tasks,
            jobs=jobs,
            cache=cache,
            max_spill_bytes=max_spill_bytes,
            on_progress=ProgressPrinter() if show_progress else None,
        )
