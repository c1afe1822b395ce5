"""One fresh process that runs vLLM's own scan on the GPU, from a bundle or by itself.

`python engine_worker.py BUNDLE {own,early,cold,warm} {signatures,batches}` prints one JSON line:
what Triton compiled, tuned and built meanwhile, times, and a digest of every result. `own` compiles
by itself, in the configurations that the bundle names; `early` loads before vLLM is imported, as
its plug-in does, the other two after it.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import time
from dataclasses import dataclass
from typing import Any

import torch

import ssd_aot
from ssd_aot.bundle.store import Bundle
from ssd_aot.engines.vllm import OPERATION
from ssd_aot.problems import Problem, make_problem
from ssd_aot.signatures import Signature

LENGTHS = {1: (700,), 2: (300, 1, 129, 270)}
"""Tokens of the sequences, by whether one or many."""


class Counters:
    """What Triton did in this process."""

    def __init__(self) -> None:
        self.compiled = self.tuned = self.built = 0

    def install(self) -> None:
        from triton import knobs
        from triton.runtime import build
        from triton.runtime.autotuner import Autotuner

        bench, compile_c = Autotuner._bench, build._build

        def listener(*, cache_hit: bool, **_: Any) -> None:
            self.compiled += not cache_hit

        def counted_bench(*args: Any, **kwargs: Any) -> Any:
            self.tuned += 1
            return bench(*args, **kwargs)

        def counted_build(*args: Any, **kwargs: Any) -> Any:
            self.built += 1
            return compile_c(*args, **kwargs)

        knobs.compilation.listener = listener
        Autotuner._bench = counted_bench
        build._build = counted_build


@dataclass(frozen=True)
class Call:
    """The operation as vLLM's mixer calls it, into outputs filled with NaN."""

    problem: Problem
    out: torch.Tensor
    cache: torch.Tensor
    slots: torch.Tensor

    @classmethod
    def of(cls, problem: Problem) -> Call:
        s, count = problem.signature, len(problem.lengths)
        shape = (count + 1, s.nheads, s.headdim, s.dstate)
        return cls(
            problem,
            out=torch.full_like(
                problem.x, float("nan"), memory_format=torch.contiguous_format
            ),
            cache=torch.full(shape, float("nan"), dtype=problem.state_dtype, device="cuda"),
            slots=torch.arange(count, 0, -1, dtype=torch.int32, device="cuda"),
        )  # fmt: skip

    def run(self, operation: Any) -> None:
        p, s = self.problem, self.problem.signature
        operation(
            p.x, p.dt, p.A, p.B, p.C, s.chunk_size, p.cu_seqlens, p.chunks.ends, p.chunks.last,
            p.chunks.owner, self.out, D=p.D, dt_bias=p.dt_bias, initial_states=p.initial_states,
            dt_softplus=True, state_dtype=p.state_dtype, final_states_out=self.cache,
            final_state_indices=self.slots,
        )  # fmt: skip

    def digest(self) -> str:
        total = hashlib.sha256()
        for tensor in (self.out, self.cache[1:]):
            total.update(tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes())
        return total.hexdigest()

    def timed_ms(self, operation: Any) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        self.run(operation)
        return (time.perf_counter() - began) * 1e3


def warm_allocator() -> None:
    """Memory that torch has asked the driver for, as an engine's has after its profiling run."""
    del [torch.empty(2**28, dtype=torch.uint8, device="cuda") for _ in range(8)][:]


def run_signatures(operation: Any, signatures: list[Signature]) -> dict[str, Any]:
    """Every signature once; the first of them again for the time of a later call."""

    def call_of(number: int) -> Call:
        signature = signatures[number]
        lengths = LENGTHS[min(signature.num_seqs[0], 2)]
        problem = make_problem(
            signature, lengths, device="cuda", decode_tokens=number % 3, seed=number
        )
        return Call.of(problem)

    first = call_of(0)
    first_ms = first.timed_ms(operation)
    results = {}
    for number, signature in enumerate(signatures):
        call = call_of(number)
        call.run(operation)
        results[signature.id] = call.digest()
    later = sorted(first.timed_ms(operation) for _ in range(50))
    return {"first_ms": first_ms, "median_ms": later[25], "results": results}


BATCHES, LAYERS = 300, 16
FULL_STEPS = ((8192,), (7000,), (5555,)), ((4096, 4096), (5000, 3000), (1234, 4321))
"""Tokens of the sequences of prefill steps, of fresh sequences and of cached prefixes."""


def run_batches(operation: Any, signatures: list[Signature]) -> dict[str, Any]:
    """300 prefill batches through all layers, the first with a cached prefix in the middle: the
    seconds they take."""
    model = [s for s in signatures if s.tp == signatures[0].tp and s.state_dtype == "fp32"]
    fresh = next(s for s in model if not s.has_initstates and s.num_seqs[0] == 1)
    cached = next(s for s in model if s.has_initstates and s.num_seqs[0] > 1)
    halves = [
        [Call.of(make_problem(s, lengths, device="cuda")) for lengths in steps]
        for s, steps in zip((fresh, cached), FULL_STEPS, strict=True)
    ]
    torch.cuda.synchronize()
    began = time.perf_counter()
    for calls in halves:
        for batch in range(BATCHES // 2):
            for _ in range(LAYERS):
                calls[batch % len(calls)].run(operation)
    torch.cuda.synchronize()
    return {"seconds": time.perf_counter() - began}


def choose(kernel: str, stored: dict[str, Any]) -> None:
    """Let an autotuner of Triton's own take the configuration that a stored result names."""
    module, _, name = kernel.partition(":")
    tuner = getattr(importlib.import_module(module), name)
    while not hasattr(tuner, "configs"):
        tuner = tuner.fn
    named, _ = stored["configs_timings"][0]
    fields = ("kwargs", "num_warps", "num_stages", "num_ctas", "maxnreg")
    tuner.cache[tuple(stored["key"])] = next(
        config for config in tuner.configs
        if all(getattr(config, field) == named[field] for field in fields)
    )  # fmt: skip


def main(path: str, mode: str, workload: str) -> None:
    bundle = Bundle.open(path)
    counters = Counters()
    torch.zeros(1, device="cuda")
    began = time.perf_counter()
    if mode == "early":
        ssd_aot.load(path, strict=True)
    operation = __import__(OPERATION, fromlist=["_"]).mamba_chunk_scan_combined_varlen
    if mode in ("cold", "warm"):
        ssd_aot.load(path, strict=True, warm=mode == "warm")
    if mode == "own":
        assert bundle.manifest.triton is not None
        for tuning in bundle.manifest.triton.tunings:
            choose(tuning.kernel, json.loads((bundle.path / tuning.path).read_text()))
    load_s = time.perf_counter() - began
    counters.install()
    warm_allocator()
    signatures = [Signature.from_json(fields) for _, fields in bundle.manifest.signatures]
    run = {"signatures": run_signatures, "batches": run_batches}[workload]
    print(json.dumps({"load_s": load_s, **run(operation, signatures), **vars(counters)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
