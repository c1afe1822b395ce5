"""Who enters a benchmark: our two ways in, their bare launches, and the engines installed here."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ssd_aot import ops
from ssd_aot.layouts import Blocking, Counts, ScanLayout
from ssd_aot.ops.execution import current_executor, executing
from ssd_aot.problems import Problem
from ssd_aot.runtime.loading import LoadedBundle


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
    absent = {}
    for name, module in (("vllm", "vllm.model_executor.layers.mamba.ops.ssd_combined"),):
        try:
            engine = importlib.import_module(module)
        except Exception as error:
            absent[name] = f"{type(error).__name__}: {error}"
            continue
        own = {**arguments, "out": torch.empty_like(arguments["out"])}
        own["final_states_out"] = torch.empty_like(arguments["final_states_out"])
        found.append(Contestant(name, _varlen(engine.mamba_chunk_scan_combined_varlen, own)))
    for name, module, prepare in (
        ("mamba_ssm", "mamba_ssm.ops.triton.ssd_combined", rows_call),
        ("sglang", "sglang.kernels.ops.mamba.triton_ops.ssd_combined", row_call),
    ):
        try:
            operation = importlib.import_module(module).mamba_chunk_scan_combined
        except Exception as error:
            absent[name] = f"{type(error).__name__}: {error}"
            continue
        call = prepare(operation, problem)
        if call is not None:
            found.append(Contestant(name, call))
    return found, absent


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


def rows_call(
    operation: Callable[..., Any], problem: Problem
) -> Callable[[], tuple[Tensor, Tensor]] | None:
    """mamba_ssm's operation over sequences of one length, each a row: (outputs, final states). None
    for sequences of several lengths."""
    if len(set(problem.lengths)) > 1:
        return None
    rows = {
        name: getattr(problem, name).unflatten(0, (len(problem.lengths), -1))
        for name in ("x", "dt", "B", "C")
    }
    initial = problem.initial_states

    @torch.no_grad()
    def call() -> tuple[Tensor, Tensor]:
        out, states = operation(
            rows["x"], rows["dt"], problem.A, rows["B"], rows["C"], problem.signature.chunk_size,
            D=problem.D, dt_bias=problem.dt_bias, initial_states=initial, dt_softplus=True,
            return_final_states=True,
        )  # fmt: skip
        return out.flatten(0, 1), states

    return call


def row_call(
    operation: Callable[..., Any], problem: Problem
) -> Callable[[], tuple[Tensor, Tensor]]:
    """SGLang's operation over sequences packed in one row: (outputs, final states).

    Its chunks are those of the row, cut into pieces where a sequence begins; with initial states
    it is told in which chunk each piece is and where it begins there.
    """
    s, tokens = problem.signature, problem.x.shape[0]
    chunk, device = s.chunk_size, problem.x.device
    row = {name: getattr(problem, name).unsqueeze(0) for name in ("x", "dt", "B", "C")}
    out = torch.empty_like(row["x"], memory_format=torch.contiguous_format)
    lengths = torch.tensor(problem.lengths, device=device)
    owner = torch.arange(len(problem.lengths), dtype=torch.int32, device=device)
    pieces = torch.tensor(
        sorted({*range(0, tokens, chunk), *problem.cu_seqlens.tolist()[:-1]}), device=device
    )
    told: dict[str, Any] = {}
    if s.has_initstates:
        told = {
            "initial_states": problem.initial_states,
            "chunk_indices": (pieces // chunk).int(),
            "chunk_offsets": (pieces % chunk).int(),
        }
    seq_idx = owner.repeat_interleave(lengths).unsqueeze(0)

    def call() -> tuple[Tensor, Tensor]:
        states = operation(
            row["x"], row["dt"], problem.A, row["B"], row["C"], chunk_size=chunk, D=problem.D,
            z=None, dt_bias=problem.dt_bias, seq_idx=seq_idx, cu_seqlens=problem.cu_seqlens,
            return_varlen_states=True, dt_softplus=True, dt_limit=(0.0, float("inf")), out=out,
            state_dtype=problem.state_dtype, **told,
        )  # fmt: skip
        return out[0], states

    return call
