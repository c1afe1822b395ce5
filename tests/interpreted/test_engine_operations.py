"""The engines' own operations as the tuner calls them, held against the recurrence that judges."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from engine_modules import engine_folder, importable
from signature_builders import signature

from ssd_aot.engines import mamba_ssm, sglang, tensorrt_llm, vllm
from ssd_aot.engines.engine import ENGINES, Engine, engine
from ssd_aot.engines.serving_calls import check_batches
from ssd_aot.measurement.running import judge_results
from ssd_aot.signatures import Signature
from ssd_aot.targets import target
from ssd_aot.tuning.poison import PoisonedMemory

OPERATIONS = {
    "vllm": vllm.OPERATION,
    "sglang": sglang.OPERATION,
    "mamba_ssm": mamba_ssm.OPERATION,
    "tensorrt_llm": tensorrt_llm.OPERATION,
}
SMALL = signature(
    nheads=2, headdim=16, dstate=16, ngroups=1, chunk_size=64, dtype="fp32", dt_dtype="fp32",
    param_dtype="fp32", num_seqs=(2, 3),
)  # fmt: skip
OPTIONS = {"z": True, "D": "headdim", "seq_idx": True}
SIGNATURES = [
    replace(SMALL, has_initstates=has, is_cont_batched=packed, **extra)
    for has in (False, True)
    for packed in (False, True)
    for extra in ({}, {"intermediate_states": True}, OPTIONS)
] + [
    replace(SMALL, is_cont_batched=False, num_seqs=(1, 1)),
    *(replace(SMALL, is_cont_batched=packed, lengths="chunk_aligned") for packed in (False, True)),
]


class Smallest(dict[Any, Any]):
    """A tuner's choices: the candidate with the smallest tiles, whatever it asks for."""

    def __init__(self, tuner: Any) -> None:
        self._one = min(tuner.configs, key=lambda config: math.prod(config.kwargs.values()))

    def __contains__(self, key: object) -> bool:
        return True

    def __getitem__(self, key: object) -> Any:
        return self._one


@pytest.fixture(scope="module")
def measured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    """An engine by its operation modules, each tuner with its smallest tiles."""
    name = request.param
    folder = engine_folder(name)
    if folder is None:
        pytest.skip(f"no modules of {name} here: python tests/engine_modules.py {name}")
    found = engine(name)
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr("ssd_aot.sources.batches.LONGEST_TOKENS", 70)
        patch.setattr("ssd_aot.engines.serving_calls.CHUNKS", (1,))
        # They name their tensors' device before each launch.
        for module in (torch.cuda, torch.cpu):
            patch.setattr(module, "device", lambda index: nullcontext(), raising=False)
        stack.enter_context(importable(name, folder, tmp_path_factory.mktemp("stand_ins")))
        stack.enter_context(found.imported(target("h200")))
        beside = OPERATIONS[name].replace("combined", "")
        for module in [module for path, module in sys.modules.items() if path.startswith(beside)]:
            for kernel in vars(module).values():
                if hasattr(kernel, "configs"):
                    kernel.cache = Smallest(kernel)
        assert isinstance(found, Engine)
        yield found


@pytest.mark.parametrize(
    ("measured", "one"),
    [(name, one) for name in ENGINES for one in SIGNATURES if not engine(name).refusal(one)],
    ids=lambda value: getattr(value, "id", value),
    indirect=["measured"],
)
def test_each_batch_is_right_in_poisoned_memory(measured: Engine, one: Signature) -> None:
    for batch in check_batches(one):
        problem = batch.problem("cpu")
        with PoisonedMemory():  # type: ignore[no-untyped-call]
            found = measured.prepare(batch, problem).results()
        assert found.states is not None
        # The interpreter gives the same bits each time.
        judgement = judge_results(problem, problem.reference(), found, found)
        assert not judgement.wrong, f"{batch}: {judgement}"
