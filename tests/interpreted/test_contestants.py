"""The calls that a benchmark makes of other engines' operations compute what ours does."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from typing import Any

import pytest
import torch
from engine_modules import engine_folder, importable
from signature_builders import signature

from ssd_aot.engines.engine import engine
from ssd_aot.engines.mamba_ssm import OPERATION as ROWS
from ssd_aot.engines.sglang import OPERATION as ROW
from ssd_aot.measurement.contestants import row_call, rows_call
from ssd_aot.measurement.running import relative_error
from ssd_aot.problems import make_problem
from ssd_aot.targets import target

ENGINES = {"mamba_ssm": (ROWS, rows_call), "sglang": (ROW, row_call)}


@pytest.fixture(params=ENGINES)
def operation(
    request: pytest.FixtureRequest, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Any, Any]]:
    """An engine's operation, each of its tuners with its first choice, and what prepares a call."""
    name = request.param
    folder = engine_folder(name)
    if folder is None:
        pytest.skip(f"no modules of {name} here: python tests/engine_modules.py")
    # They name their tensors' device before each launch.
    for device_module in (torch.cuda, torch.cpu):
        monkeypatch.setattr(device_module, "device", lambda index: nullcontext(), raising=False)
    module, prepare = ENGINES[name]
    with ExitStack() as stack:
        stack.enter_context(importable(name, folder, tmp_path))
        stack.enter_context(engine(name).imported(target("h200")))
        package = importlib.import_module(module.rpartition(".")[0])
        for found in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            if "ssd_" in found.name:
                for kernel in vars(importlib.import_module(found.name)).values():
                    if hasattr(kernel, "configs"):
                        kernel.configs = kernel.configs[:1]
        yield importlib.import_module(module).mamba_chunk_scan_combined, prepare


@pytest.mark.parametrize("has_initstates", [False, True])
def test_other_engines_compute_what_is_compared(
    operation: tuple[Any, Any], has_initstates: bool
) -> None:
    call, prepare = operation
    small = signature(
        nheads=2, headdim=16, dstate=16, ngroups=1, chunk_size=16, dtype="fp32", dt_dtype="fp32",
        param_dtype="fp32", num_seqs=(2, 2), has_initstates=has_initstates,
    )  # fmt: skip
    problem = make_problem(small, (24, 24), device="cpu")

    out, states = prepare(call, problem)()

    wanted = problem.reference()
    assert wanted.states is not None
    assert relative_error(out, wanted.out) < 5e-3
    assert relative_error(states, wanted.states) < 5e-3
