"""vLLM's own operation as the tuner calls it, held against the recurrence it is judged by."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from engine_modules import engine_folder, importable
from signature_builders import signature

from ssd_aot.engines.engine import engine
from ssd_aot.engines.serving_calls import MeasuredEngine, check_batches
from ssd_aot.measurement.running import judge_results
from ssd_aot.targets import target
from ssd_aot.triton_compat.forcing import tuner_of
from ssd_aot.tuning.poison import PoisonedMemory

OPERATIONS = "vllm.model_executor.layers.mamba.ops"
KERNELS = (
    "ssd_bmm:_bmm_chunk_fwd_kernel",
    "ssd_chunk_scan:_chunk_scan_fwd_kernel",
    "ssd_chunk_state:_chunk_state_fwd_kernel",
    "ssd_chunk_state:_chunk_cumsum_fwd_kernel",
    "ssd_state_passing:_state_passing_fwd_kernel",
)


class First(dict[Any, Any]):
    """A tuner's choices, its first candidate whatever it asks for."""

    def __init__(self, tuner: Any) -> None:
        self._first = tuner.configs[0]

    def __contains__(self, key: object) -> bool:
        return True

    def __getitem__(self, key: object) -> Any:
        return self._first


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasuredEngine]:
    folder = engine_folder("vllm")
    if folder is None:
        pytest.skip("no modules of vllm here: python tests/engine_modules.py vllm")
    found = engine("vllm")
    assert isinstance(found, MeasuredEngine)
    with ExitStack() as stack:
        stack.enter_context(importable("vllm", folder, tmp_path_factory.mktemp("stand_ins")))
        stack.enter_context(found.imported(target("h200")))
        for kernel in KERNELS:
            tuner = tuner_of(f"{OPERATIONS}.{kernel}")
            tuner.cache = First(tuner)
        yield found


@pytest.mark.parametrize("intermediate_states", [False, True])
@pytest.mark.parametrize("has_initstates", [False, True])
def test_each_batch_is_right_in_poisoned_memory(
    vllm: MeasuredEngine,
    has_initstates: bool,
    intermediate_states: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ssd_aot.sources.batches.LONGEST_TOKENS", 70)
    small = signature(
        nheads=2, headdim=16, dstate=16, ngroups=1, chunk_size=32, dtype="fp32", dt_dtype="fp32",
        param_dtype="fp32", num_seqs=(2, 5), has_initstates=has_initstates,
        intermediate_states=intermediate_states,
    )  # fmt: skip
    assert not vllm.refusal(small)

    for batch in check_batches(small):
        problem = batch.problem("cpu")
        with PoisonedMemory():  # type: ignore[no-untyped-call]
            first, second = (vllm.prepare(batch, problem).results() for _ in range(2))
        judgement = judge_results(problem, problem.reference(), first, second)
        assert not judgement.wrong, f"{batch}: {judgement}"
