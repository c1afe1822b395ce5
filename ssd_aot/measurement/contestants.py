"""Who enters a benchmark: our two ways in, their bare launches, and the engines installed here."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ssd_aot import ops
from ssd_aot.engines.engine import engine
from ssd_aot.engines.serving_calls import ServingBatch
from ssd_aot.layouts import Blocking, Counts, ScanLayout
from ssd_aot.ops.execution import current_executor, executing
from ssd_aot.problems import Problem
from ssd_aot.runtime.loading import LoadedBundle

ENGINES_BESIDE = ("vllm", "mamba_ssm", "sglang")


@dataclass(frozen=True)
class Contestant:
    """A call to time; `captured` says whether it is timed as a captured graph too."""

    name: str
    call: Callable[[], object]
    captured: bool = True


def contestants(problem: Problem) -> tuple[list[Contestant], dict[str, str]]:
    """Those that can run here, and why others cannot. Outputs and states go to buffers of their
    own."""
    arguments = _arguments(problem)
    drop_in = _varlen(ops.mamba_chunk_scan_combined_varlen, arguments)
    drop_in()
    found = [Contestant("drop-in", drop_in), Contestant("prepared", _prepared(problem, arguments))]
    launches = _bare_launches(drop_in)
    found.append(Contestant(f"{len(launches)} bare launches", _bare(launches), captured=False))
    five = (launches * 5)[:5]
    found.append(Contestant("5 bare launches", _bare(five), captured=False))
    found.append(Contestant("graph of ours", _graph(drop_in), captured=False))
    theirs, absent = engines_here(problem)
    for one in theirs:
        try:
            one.call()
        except Exception as error:
            absent[one.name] = f"{type(error).__name__}: {error}"
        else:
            found.append(one)
    return found, absent


def engines_here(problem: Problem) -> tuple[list[Contestant], dict[str, str]]:
    """The calls that layers of the engines here make, and why other engines cannot be called. An
    engine that takes sequences in rows is given them so where they are of one length; one that
    never makes such a call at all does not enter."""
    found: list[Contestant] = []
    absent: dict[str, str] = {}
    for name in ENGINES_BESIDE:
        source = engine(name)
        try:
            importlib.import_module(importlib.import_module(f"ssd_aot.engines.{name}").OPERATION)
        except Exception as error:
            absent[name] = f"{type(error).__name__}: {error}"
            continue
        source.adopt()
        shaped = (one for one in (*_in_rows(problem), problem) if not source.refusal(one.signature))
        one = next(shaped, None)
        if one is not None:
            batch = ServingBatch(one.signature, one.lengths, decode_tokens=0)
            found.append(Contestant(name, source.prepare(batch, one).run))
    return found, absent


def _in_rows(problem: Problem) -> list[Problem]:
    """The problem with a sequence a row, if they are of one length."""
    if len(set(problem.lengths)) > 1:
        return []
    rows = {
        name: getattr(problem, name).unflatten(0, (len(problem.lengths), -1))
        for name in ("x", "dt", "B", "C", "z")
        if getattr(problem, name) is not None
    }
    return [replace(problem, signature=replace(problem.signature, is_cont_batched=False), **rows)]


@dataclass
class _Probe:
    """An executor that keeps the layout and counts of a call."""

    blocking: Blocking = field(default_factory=Blocking)
    seen: list[tuple[ScanLayout, Counts]] = field(default_factory=list)

    def run(self, tensors: Mapping[str, Tensor], layout: ScanLayout, counts: Counts) -> None:
        self.seen.append((layout, counts))


BareLaunches = tuple[tuple[Callable[..., int], tuple[object, ...]], ...]


def _bare_launches(call: Callable[[], None]) -> BareLaunches:
    probe = _Probe()
    with executing(probe):
        call()
    loaded = current_executor()
    assert isinstance(loaded, LoadedBundle)
    return loaded.bare_launches(0, *probe.seen[0])


def _arguments(problem: Problem) -> dict[str, Any]:
    s, count = problem.signature, len(problem.lengths)
    shape = (count + 1, s.nheads, s.headdim, s.dstate)
    return {
        "x": problem.x, "dt": problem.dt, "A": problem.A, "B": problem.B, "C": problem.C,
        "chunk_size": s.chunk_size, "cu_seqlens": problem.cu_seqlens,
        "cu_chunk_seqlens": problem.chunks.ends, "last_chunk_indices": problem.chunks.last,
        "seq_idx": problem.chunks.owner,
        "out": torch.empty(problem.x.shape, dtype=problem.x.dtype, device=problem.x.device),
        "D": problem.D, "dt_bias": problem.dt_bias, "initial_states": problem.initial_states,
        "dt_softplus": True, "state_dtype": problem.state_dtype,
        "final_states_out": torch.empty(shape, dtype=problem.state_dtype, device=problem.x.device),
        "final_state_indices": torch.arange(count, dtype=torch.int32, device=problem.x.device),
    }  # fmt: skip


def _varlen(operation: Callable[..., Any], arguments: dict[str, Any]) -> Callable[[], None]:
    def call() -> None:
        operation(**arguments)

    return call


def _prepared(problem: Problem, arguments: dict[str, Any]) -> Callable[[], None]:
    layer = ops.prepare(
        problem.A, D=problem.D, dt_bias=problem.dt_bias, chunk_size=128, dt_softplus=True
    )
    names = ("x", "dt", "B", "C", "out", "cu_seqlens", "initial_states", "final_states_out",
             "final_state_indices")  # fmt: skip
    positional = tuple(arguments[name] for name in names)

    def call() -> None:
        layer(*positional)

    return call


def _bare(
    launches: tuple[tuple[Callable[..., int], tuple[object, ...]], ...],
) -> Callable[[], None]:
    def call() -> None:
        for function, arguments in launches:
            function(*arguments)

    return call


def _graph(call: Callable[[], None]) -> Callable[[], None]:
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        call()
    return graph.replay
