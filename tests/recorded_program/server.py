# mypy: ignore-errors
"""A program with kernels of its own, which also works in child processes.

`server.py HOW [BUNDLE]`: HOW is `here`, `spawn` or `fork`; with a bundle it serves from that, in
strict mode unless `lenient`. Without a GPU it runs on a driver that launches nothing. Prints as
JSON what Triton compiled, and what the service found.
"""

import json
import multiprocessing
import sys
from contextlib import ExitStack

import five_kernels
import torch
import triton
import triton.language as tl


@triton.jit
def of_the_program(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x_ptr + i, five_kernels.halved(tl.load(x_ptr + i, mask=i < n, other=0.0)), mask=i < n)


def launch(device):
    """Every kernel; on a GPU the outputs are what they should be."""
    x, found = five_kernels.run(device)
    of_the_program[(1,)](torch.ones(64, device=device), 64, BLOCK=64)

    @triton.jit
    def inside(x_ptr):
        tl.store(x_ptr, 0.0)

    if "inside" in sys.argv:
        inside[(1,)](x)
    if device == "cuda":
        for number, (have, want) in enumerate(zip(found, five_kernels.expected(x), strict=True)):
            assert torch.allclose(have, want.float(), rtol=1e-2), number


def serve(bundle):
    compiled = []
    with ExitStack() as stack:
        device = "cuda" if torch.cuda.is_available() else stand_in(stack)
        triton.knobs.compilation.listener = lambda *, src, cache_hit, **_: (
            None if cache_hit else compiled.append(src.name)
        )
        if bundle:
            import ssd_aot

            ssd_aot.load(bundle, strict="lenient" not in sys.argv, warm="warm" in sys.argv)
            compiled.append(len(five_kernels.tuned.fn.device_caches[0][0]))
        launch(device)
        status = {}
        if bundle:
            status = ssd_aot.status()
        print(json.dumps([compiled, status]), flush=True)


def stand_in(stack):
    """A driver that launches nothing and measures at once; tensors of the CPU are taken for a
    GPU's."""
    from serving_driver import ServingDriver
    from triton.runtime.driver import driver

    from ssd_aot.engines.presenting import presented
    from ssd_aot.targets import target

    class Measuring(ServingDriver):
        def get_benchmarker(self):
            times = iter(range(100, 0, -1))

            def bench(call, quantiles):
                call()
                return [float(next(times))] * 3

            return bench

    stack.enter_context(presented(target("h200")))
    driver.set_active(Measuring(target("h200")))
    return "cpu"


if __name__ == "__main__":
    how, bundle = sys.argv[1], next((a for a in sys.argv[2:] if "/" in a), "")
    if how == "here":
        serve(bundle)
    else:
        child = multiprocessing.get_context(how).Process(target=serve, args=(bundle,))
        child.start()
        child.join()
        sys.exit(child.exitcode)
