"""Bundles of the fixture engine, built and served as a real engine's are, without one.

`python tests/engine_bundles.py OUT` builds one in a process of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from fixture_engine.engine import FixtureEngine
from serving_driver import ServingDriver
from signature_builders import signature
from spec_builders import write_spec

from ssd_aot.build_report import BuildReport
from ssd_aot.bundle.store import Bundle
from ssd_aot.bundle.writer import BundleWriter
from ssd_aot.engines.building import build_engine
from ssd_aot.engines.engine import Call
from ssd_aot.engines.presenting import presented
from ssd_aot.engines.serving_calls import PreparedCall, ServingBatch
from ssd_aot.problems import Problem, Results
from ssd_aot.signatures import Signature
from ssd_aot.spec import load_spec
from ssd_aot.targets import target

TWO_MODELS = """\
version: 1
source: vllm
models:
  even: {nheads: 32, headdim: 16, dstate: 16, ngroups: 1}
  odd: {nheads: 33, headdim: 16, dstate: 16, ngroups: 1}
matrix: {HAS_INITSTATES: [true], IS_CONT_BATCHED: [false], num_seqs: [many]}
"""
"""Each model has launches of its own, and both share some."""

ONE_MODEL = "".join(line for line in TWO_MODELS.splitlines(True) if "odd" not in line)

Calls = Callable[[Any, Signature], object]
"""Runs launch code of the fixture's operation module for a signature."""


def scan(op: Any, signature: Signature) -> None:
    """Every style of launch: autotuned, pruned, by a heuristic, not specialised, and with
    arguments that are None, unaligned, or a dtype."""
    op.run_copied(signature.nheads)
    op.run_pruned(signature.nheads)
    op.run_by_heuristic(signature.nheads)
    op.run_unspecialised(signature.nheads)
    op.run_strided(signature.nheads)
    op.run_added((0, 0, 0))
    op.run_added((0, 4, 0), bias=op.meta(16), dtype=op.tl.bfloat16)


EVEN, ODD = (signature(is_cont_batched=False, nheads=nheads) for nheads in (32, 33))
"""What the two models' layers call with."""


class CallingEngine(FixtureEngine):
    """The fixture with calls that depend on the signature."""

    def __init__(self, calls: Calls) -> None:
        super().__init__(lambda op: None)
        self._by_signature = calls

    def calls(self, signature: Signature) -> Iterator[Call]:
        yield lambda: self._by_signature(self._operation, signature)

    def prepare(self, batch: ServingBatch, problem: Problem) -> PreparedCall:
        def run() -> None:
            self._by_signature(self._operation, batch.signature)

        return PreparedCall(run, lambda _: Results(problem.x, None))

    def adopt(self) -> bool:
        return self._operation is not None

    @contextmanager
    def operation(self, gpu: str) -> Iterator[Any]:
        with self.imported(target(gpu)):
            yield self._operation


@contextmanager
def installed(calls: Calls = scan) -> Iterator[None]:
    """The fixture stands for an installed vLLM until the end of the block."""
    engine = CallingEngine(calls)
    with ExitStack() as stack:
        for place in ("engines.building", "engines.planning", "engines.tuning_process", "sources"):
            name = f"ssd_aot.{place}.require_installed"
            stack.enter_context(mock.patch(name, lambda *_: "0.0.1"))
        for place in ("tracing", "reaching"):
            stack.enter_context(mock.patch(f"ssd_aot.engines.{place}.engine", lambda _: engine))
        yield


def build(
    out: Path,
    text: str = TWO_MODELS,
    *,
    gpus: Sequence[str] = ("h200",),
    calls: Calls = scan,
    **options: Any,
) -> BuildReport:
    """See `build_engine`; the spec is written beside `out`."""
    out.parent.mkdir(parents=True, exist_ok=True)
    spec = load_spec([write_spec(out.parent, text)])
    with installed(calls):
        return build_engine(spec, [target(gpu) for gpu in gpus], out, jobs=2, **options)


def rewritten(built: Path, out: Path, **changes: Any) -> Path:
    """The bundle with fields of its manifest replaced, by somebody who writes bundles."""
    bundle = Bundle.open(built)
    writer = BundleWriter(out)
    for path, _, _ in bundle.manifest.files:
        writer.add_file(path, (bundle.path / path).read_bytes())
    writer.commit(replace(bundle.manifest, **changes))
    return out


def of_toolchain(built: Path, out: Path, **changes: Any) -> Path:
    """The bundle as built by another toolchain."""
    toolchain = replace(Bundle.open(built).manifest.toolchain, **changes)
    return rewritten(built, out, toolchain=toolchain)


@contextmanager
def serving(gpu: str = "h200") -> Iterator[tuple[Any, ServingDriver]]:
    """The fixture's operation module as a serving process has it, and the driver there."""
    from triton.runtime.driver import driver

    with presented(target(gpu)):
        here = ServingDriver(target(gpu))
        driver.set_active(here)
        with CallingEngine(scan).operation(gpu) as op:
            yield op, here


if __name__ == "__main__":
    print(build(Path(sys.argv[1])))
