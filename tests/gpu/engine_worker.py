"""One fresh process that runs an engine's own scan on the GPU, from a bundle or by itself.

`python engine_worker.py BUNDLE {own,early,cold,warm} {signatures,batches}` prints one JSON line:
what Triton compiled, tuned and built meanwhile, times, and a digest of every result. `own` compiles
by itself, in the configurations that the bundle names; `early` loads before the engine is imported,
as vLLM's plug-in does, the other two after it.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

import ssd_aot
from ssd_aot.bundle.store import Bundle
from ssd_aot.engines.engine import Engine, engine
from ssd_aot.engines.serving_calls import PreparedCall, ServingBatch
from ssd_aot.measurement.running import TOLERANCE, relative_error
from ssd_aot.problems import Problem, Results
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


def prepared(
    source: Engine, signature: Signature, lengths: tuple[int, ...], number: int = 0
) -> tuple[PreparedCall, Problem]:
    """A layer's call, and its problem."""
    if not signature.is_cont_batched:
        lengths = (lengths[0],) * len(lengths)
    batch = ServingBatch(signature, lengths, decode_tokens=number % 3, seed=number)
    problem = batch.problem("cuda")
    return source.prepare(batch, problem), problem


def digest(results: Results) -> str:
    total = hashlib.sha256()
    for tensor in (results.out, results.states):
        if tensor is not None:
            total.update(tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return total.hexdigest()


def timed_ms(call: Callable[[], object], *, after_waiting: bool = False) -> float:
    if after_waiting:
        torch.cuda._sleep(4_000_000)  # type: ignore[no-untyped-call]  # cycles: 2 ms
    torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1e3


def warm_allocator() -> None:
    """Memory that torch has asked the driver for, as an engine's has after its profiling run."""
    del [torch.empty(2**28, dtype=torch.uint8, device="cuda") for _ in range(8)][:]


def run_signatures(source: Engine, signatures: list[Signature], judged: bool) -> dict[str, Any]:
    """Every signature once, `judged` by the recurrence; the first of them again for the time of a
    later call."""
    first, _ = call_of(source, signatures, 0)
    first_ms = timed_ms(first.run)
    results, errors = {}, [0.0]
    for number, signature in enumerate(signatures):
        call, problem = call_of(source, signatures, number)
        found = call.results()
        results[signature.id] = digest(found)
        if judged:
            error = relative_error(found.out, problem.reference().out)
            errors.append(error / TOLERANCE[signature.dtype])
    later = [timed_ms(first.run) for _ in range(50)]
    after_waits = [timed_ms(first.run, after_waiting=True) for _ in range(50)]
    return {
        "first_ms": first_ms, "median_ms": median(later), "after_waits_ms": median(after_waits),
        "results": results, "error": max(errors),
    }  # fmt: skip


def call_of(
    source: Engine, signatures: list[Signature], number: int
) -> tuple[PreparedCall, Problem]:
    signature = signatures[number]
    return prepared(source, signature, LENGTHS[min(signature.num_seqs[0], 2)], number)


BATCHES, LAYERS = 300, 16
FULL_STEPS = ((8192,), (7000,), (5555,)), ((4096, 4096), (5000, 3000), (1234, 4321))
"""Tokens of the sequences of prefill steps, of fresh sequences and of cached prefixes."""


def run_batches(source: Engine, signatures: list[Signature], judged: bool) -> dict[str, Any]:
    """300 prefill batches through all layers, the first with a cached prefix in the middle: the
    seconds they take."""
    model = [s for s in signatures if s.tp == signatures[0].tp and s.state_dtype == "fp32"]
    fresh = next(s for s in model if not s.has_initstates and s.num_seqs[0] == 1)
    cached = next(s for s in model if s.has_initstates and s.num_seqs[0] > 1)
    halves = [
        [prepared(source, s, lengths)[0] for lengths in steps]
        for s, steps in zip((fresh, cached), FULL_STEPS, strict=True)
    ]
    torch.cuda.synchronize()
    began = time.perf_counter()
    for calls in halves:
        for batch in range(BATCHES // 2):
            for _ in range(LAYERS):
                calls[batch % len(calls)].run()
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
    source = engine(bundle.manifest.source.name)
    assert isinstance(source, Engine)
    counters = Counters()
    torch.zeros(1, device="cuda")
    began = time.perf_counter()
    if mode == "early":
        ssd_aot.load(path, strict=True)
    module = sys.modules[type(source).__module__]
    for name in ("OPERATION", "METADATA"):
        if hasattr(module, name):
            importlib.import_module(getattr(module, name))
    assert source.adopt()
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
    print(
        json.dumps({"load_s": load_s, **run(source, signatures, mode == "own"), **vars(counters)})
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
