"""The engines that enter a benchmark, by their operation modules alone and on meta tensors."""

from __future__ import annotations

import importlib.util
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from engine_modules import engine_folder, importable
from signature_builders import signature

from ssd_aot.measurement.contestants import engines_here
from ssd_aot.problems import make_problem

PACKED = (1, 48, 128, 64)


@pytest.mark.parametrize(
    ("lengths", "has_initstates", "wanted"),
    [
        ((24, 24), True, {"mamba_ssm": (2, 24, 128, 64), "sglang": PACKED}),
        ((8, 40), False, {"mamba_ssm": PACKED, "sglang": PACKED}),
        ((8, 40), True, {"sglang": PACKED}),
    ],
)
def test_engines_here_enter_with_the_calls_of_their_layers(
    lengths: tuple[int, ...], has_initstates: bool, wanted: dict[str, Any], tmp_path: Path
) -> None:
    problem = make_problem(signature(has_initstates=has_initstates), lengths, device="meta")
    with ExitStack() as stack:
        for name in ("mamba_ssm", "sglang"):
            folder = engine_folder(name)
            if folder is None:
                pytest.skip(f"no modules of {name} here: python tests/engine_modules.py {name}")
            stack.enter_context(importable(name, folder, tmp_path))
        found, absent = engines_here(problem)

    calls: dict[str, Any] = {contestant.name: contestant.call for contestant in found}
    assert {name: tuple(call.args[0].shape) for name, call in calls.items()} == wanted
    if importlib.util.find_spec("vllm") is None:
        assert absent["vllm"].startswith("ModuleNotFoundError")
