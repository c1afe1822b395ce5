"""One fresh process that runs vLLM's own scan on the GPU, from a bundle or by itself.

`python engine_worker.py BUNDLE {own,cold,warm} {signatures,batches}` prints one JSON line: what
Triton compiled, tuned and built meanwhile, times, and a digest of every result. `own` compiles by
itself, in the configurations that the bundle names.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from typing import Any

import torch

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


def call(operation: Any, problem: Problem) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The operation as vLLM's mixer calls it, into outputs filled with NaN."""
    s = problem.signature
    out = torch.full_like(problem.x, float("nan"), memory_format=torch.contiguous_format)
    slots = torch.arange(len(problem.lengths), 0, -1, dtype=torch.int32, device="cuda")
    cache = torch.full(
        (len(problem.lengths) + 1, s.nheads, s.headdim, s.dstate), float("nan"),
        dtype=problem.state_dtype, device="cuda",
    )  # fmt: skip
    operation(
        problem.x, problem.dt, problem.A, problem.B, problem.C, s.chunk_size, problem.cu_seqlens,
        problem.chunks.ends, problem.chunks.last, problem.chunks.owner, out, D=problem.D,
        dt_bias=problem.dt_bias, initial_states=problem.initial_states, dt_softplus=True,
        state_dtype=problem.state_dtype, final_states_out=cache, final_state_indices=slots,
    )  # fmt: skip
    return out, cache[1:]


def digest(*tensors: torch.Tensor | None) -> str:
    total = hashlib.sha256()
    for tensor in tensors:
        if tensor is not None:
            total.update(tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return total.hexdigest()


def timed_ms(operation: Any, problem: Problem) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    call(operation, problem)
    return (time.perf_counter() - began) * 1e3


def run_signatures(operation: Any, signatures: list[Signature]) -> dict[str, Any]:
    """Every signature once; the first of them again for the time of a later call."""
    problems = [
        make_problem(s, LENGTHS[min(s.num_seqs[0], 2)], device="cuda", decode_tokens=i % 3, seed=i)
        for i, s in enumerate(signatures)
    ]
    first_ms = timed_ms(operation, problems[0])
    results = {}
    for signature, problem in zip(signatures, problems, strict=True):
        results[signature.id] = digest(*call(operation, problem))
    later = sorted(timed_ms(operation, problems[0]) for _ in range(50))
    return {"first_ms": first_ms, "median_ms": later[25], "results": results}


def run_batches(operation: Any, signatures: list[Signature]) -> dict[str, Any]:
    """300 prefill batches, the first with a cached prefix in the middle: the seconds they take."""
    model = [s for s in signatures if s.tp == signatures[0].tp and s.state_dtype == "fp32"]
    fresh = next(s for s in model if not s.has_initstates and s.num_seqs[0] == 1)
    cached = next(s for s in model if s.has_initstates and s.num_seqs[0] > 1)
    problems = [
        make_problem(fresh if i < 150 else cached, (64 + i,) if i < 150 else (32 + i, 17),
                     device="cuda", seed=i)
        for i in range(300)
    ]  # fmt: skip
    torch.cuda.synchronize()
    began = time.perf_counter()
    for problem in problems:
        call(operation, problem)
    torch.cuda.synchronize()
    return {"seconds": time.perf_counter() - began}


def main(path: str, mode: str, workload: str) -> None:
    bundle = Bundle.open(path)
    counters = Counters()
    torch.zeros(1, device="cuda")
    began = time.perf_counter()
    if mode == "cold":
        import ssd_aot

        ssd_aot.load(path, strict=True)
    operation = __import__(OPERATION, fromlist=["_"]).mamba_chunk_scan_combined_varlen
    if mode == "warm":
        import ssd_aot

        ssd_aot.load(path, strict=True, warm=True)
    if mode == "own":
        from ssd_aot.triton_compat.preloading import preload_tuning

        assert bundle.manifest.triton is not None
        for tuning in bundle.manifest.triton.tunings:
            preload_tuning(tuning.kernel, json.loads((bundle.path / tuning.path).read_text()))
    load_s = time.perf_counter() - began
    counters.install()
    signatures = [Signature.from_json(fields) for _, fields in bundle.manifest.signatures]
    run = {"signatures": run_signatures, "batches": run_batches}[workload]
    print(json.dumps({"load_s": load_s, **run(operation, signatures), **vars(counters)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
