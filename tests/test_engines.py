"""What the engines' own operation modules launch; `engine_modules` says where those come from."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path

import pytest
from engine_modules import FIXTURE, importable, importable_engine
from signature_builders import signature

from ssd_aot.engines.chunked_batches import PackedBatch, RowBatch
from ssd_aot.engines.engine import engine
from ssd_aot.engines.tracing import trace_engine
from ssd_aot.errors import HostError
from ssd_aot.signatures import Signature
from ssd_aot.targets import target
from ssd_aot.triton_compat import CapturedLaunch

MANY = signature(num_seqs=(2, 64), max_num_batched_tokens=4096)
ODD_ROWS = signature(nheads=4, ngroups=1, num_seqs=(1, 64), max_num_batched_tokens=2048)
ROWS = {"is_cont_batched": False, "num_seqs": (1, 8), "max_num_batched_tokens": 4096}
SCAN, STATES = "_chunk_scan_fwd_kernel", "_chunk_state_fwd_kernel"
PASSING, VARLEN = "_state_passing_fwd_kernel", "_chunk_state_varlen_kernel"
CUMSUM, PRODUCT = "_chunk_cumsum_fwd_kernel", "_bmm_chunk_fwd_kernel"
PIECES = "_cu_seqlens_triton_kernel"

Traced = list[CapturedLaunch]


def traced(name: str, scratch: Path, *signatures: Signature, gpu: str = "h200") -> Traced:
    """What an engine launches under the signatures, by its modules alone; the test is skipped
    where they are not here."""
    with importable_engine(name, scratch):
        return [found.captured for found in trace_engine(name, target(gpu), signatures)]


def kernels(launches: Iterable[CapturedLaunch]) -> set[str]:
    return {launch.launch.kernel.partition(":")[2] for launch in launches}


def of(launches: Traced, kernel: str) -> Traced:
    return [launch for launch in launches if launch.launch.kernel.endswith(f":{kernel}")]


def constexprs(launches: Traced, *names: str) -> set[tuple[object, ...]]:
    return {tuple(dict(launch.launch.constexprs).get(n) for n in names) for launch in launches}


def blocks(launches: Traced, name: str) -> set[int]:
    found = (
        dict(candidate.configuration.constexprs)[name]
        for launch in launches
        for candidate in launch.candidates
    )
    return {value for value in found if isinstance(value, int)}


@pytest.mark.parametrize(
    "name, s, wanted",
    [
        ("sglang", MANY, {CUMSUM, STATES, PASSING, PRODUCT, SCAN, VARLEN}),
        ("mamba_ssm", signature(**ROWS), {CUMSUM, STATES, PASSING, PRODUCT, SCAN}),
        ("mamba_ssm", signature(has_initstates=False), {VARLEN, PASSING, SCAN}),
        ("tensorrt_llm", MANY, {PASSING, SCAN, VARLEN, PIECES}),
        ("vllm", MANY, {CUMSUM, STATES, PASSING, PRODUCT, SCAN}),
    ],
)
def test_the_operations_kernels_are_planned(
    name: str, s: Signature, wanted: set[str], tmp_path: Path
) -> None:
    launches = traced(name, tmp_path, s)
    assert kernels(launches) >= wanted
    keys = [launch.tuning.key for launch in launches if launch.tuning]
    assert keys and all(keys)


@pytest.mark.parametrize("s", [ODD_ROWS, MANY], ids=["odd rows", "many"])
@pytest.mark.parametrize("name", ["sglang", "tensorrt_llm"])
def test_random_packed_batches_launch_nothing_unplanned(
    name: str, s: Signature, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = traced(name, tmp_path, s)
    monkeypatch.setattr(f"ssd_aot.engines.{name}.packed_batches", _packed_batches)
    assert {c.launch for c in traced(name, tmp_path, s)} <= {c.launch for c in planned}


def test_random_row_batches_launch_nothing_unplanned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s = signature(nheads=4, ngroups=1, **ROWS)
    planned = traced("mamba_ssm", tmp_path, s)
    monkeypatch.setattr("ssd_aot.engines.mamba_ssm.row_batches", _row_batches)
    assert {c.launch for c in traced("mamba_ssm", tmp_path, s)} <= {c.launch for c in planned}


def _packed_batches(s: Signature) -> Iterator[PackedBatch]:
    draw = random.Random(0)
    for _ in range(100):
        count = draw.randint(*s.num_seqs)
        longest = draw.choice([4, 40, s.max_num_batched_tokens // count])
        ends = list(accumulate(draw.randint(1, longest) for _ in range(count)))
        cut = sum(end % s.chunk_size > 0 for end in ends[:-1])
        yield PackedBatch(ends[-1], s.chunk_size, count, -(-ends[-1] // s.chunk_size) + cut)


def _row_batches(s: Signature) -> Iterator[RowBatch]:
    draw = random.Random(0)
    for _ in range(100):
        rows = draw.randint(*s.num_seqs)
        yield RowBatch(draw.randint(1, s.max_num_batched_tokens // rows), s.chunk_size, rows)


def test_sglang_offers_no_tile_wider_than_what_it_covers(tmp_path: Path) -> None:
    launches = traced("sglang", tmp_path, MANY, signature(nheads=8, ngroups=1))
    assert max(blocks(of(launches, STATES), "BLOCK_SIZE_M")) == MANY.headdim
    few_heads = [
        launch for launch in of(launches, CUMSUM) if max(blocks([launch], "BLOCK_SIZE_H")) == 8
    ]
    assert few_heads and len(few_heads) < len(of(launches, CUMSUM))


def test_sglang_tracks_states_by_launches_that_it_makes_anyway(tmp_path: Path) -> None:
    tracking = signature(num_seqs=(2, 64), intermediate_states=True)
    plain = signature(num_seqs=(2, 64))
    assert traced("sglang", tmp_path, tracking) == traced("sglang", tmp_path, plain)


def test_the_12_variants_that_tensorrt_llms_warm_up_missed_are_planned(tmp_path: Path) -> None:
    """TensorRT-LLM#16177 lists them: 5 configurations of the varlen chunk-state kernel, 4 of state
    passing (HAS_INITSTATES × IS_CONT_BATCHED), 2 of the scan, 1 of the chunk-index kernel."""
    matrix = [
        signature(has_initstates=has, is_cont_batched=packed, num_seqs=count)
        for has in (False, True)
        for packed in (False, True)
        for count in ((1, 1), (2, 64))
    ]
    served = [s for s in matrix if not engine("tensorrt_llm").refusal(s)]
    launches = traced("tensorrt_llm", tmp_path, *served)
    with_states = [
        c for c in of(launches, VARLEN) if constexprs([c], "HAS_INITSTATES") == {(True,)}
    ]
    assert min(len(launch.candidates) for launch in with_states) >= 5
    assert constexprs(of(launches, PASSING), "HAS_INITSTATES", "IS_CONT_BATCHED") == {
        (has, packed) for has in (False, True) for packed in (False, True)
    }
    assert constexprs(of(launches, SCAN), "HAS_INITSTATES") == {(False,), (True,)}
    assert of(launches, PIECES)


@pytest.mark.parametrize(
    "s, reached",
    [
        (MANY, True),
        (signature(num_seqs=(1, 1)), False),
        (signature(num_seqs=(2, 64), has_initstates=False), False),
        (signature(is_cont_batched=False, num_seqs=(1, 1)), False),
    ],
    ids=["many", "one", "no initial states", "row"],
)
def test_only_several_sequences_with_initial_states_reach_tensorrt_llms_chunk_index_kernel(
    s: Signature, reached: bool, tmp_path: Path
) -> None:
    assert bool(of(traced("tensorrt_llm", tmp_path, s), PIECES)) == reached


def test_a_chunk_index_kernel_compiled_anew_for_each_batch_is_left_out(tmp_path: Path) -> None:
    """TensorRT-LLM 1.2 takes both counts as constexprs."""
    older = _changed_fixture(tmp_path, "_ptr, num_seqs,", "_ptr, num_seqs: tl.constexpr,")
    with importable("tensorrt_llm", older, tmp_path):
        found = trace_engine("tensorrt_llm", target("h200"), [MANY])
    assert kernels(launch.captured for launch in found) == {PASSING, SCAN, VARLEN}


def test_an_operation_that_makes_its_own_output_is_too_old(tmp_path: Path) -> None:
    with (
        importable("tensorrt_llm", _changed_fixture(tmp_path, "out=None,", ""), tmp_path),
        pytest.raises(HostError, match="older than those that are known"),
    ):
        trace_engine("tensorrt_llm", target("h200"), [MANY])


def test_a_geometry_that_runs_past_triton_is_refused(tmp_path: Path) -> None:
    """From 1.3 on TensorRT-LLM may take FlashInfer's kernel on sm_100."""
    called = "has, grid = initial_states is not None, (rows,)"
    past = _changed_fixture(tmp_path, called, "return _mamba_chunk_scan_flashinfer_fwd(x)")
    with (
        importable("tensorrt_llm", past, tmp_path),
        pytest.raises(HostError, match="past Triton"),
    ):
        trace_engine("tensorrt_llm", target("b200"), [MANY])


def _changed_fixture(tmp_path: Path, old: str, new: str) -> Path:
    modules = Path("tensorrt_llm", "_torch", "modules", "mamba")
    (tmp_path / "changed" / modules).mkdir(parents=True)
    for module in (FIXTURE / modules).glob("*.py"):
        text = module.read_text().replace(old, new)
        (tmp_path / "changed" / modules / module.name).write_text(text)
    return tmp_path / "changed"


def test_mamba_ssm_takes_what_a_signature_says_of_the_optional_arguments(tmp_path: Path) -> None:
    launches = traced(
        "mamba_ssm",
        tmp_path,
        signature(**ROWS, z=True, D="headdim", seq_idx=True),
        signature(**ROWS, dt_bias=False, D="none"),
    )
    flags = ("HAS_Z", "HAS_D", "D_HAS_HDIM", "HAS_SEQ_IDX")
    assert constexprs(of(launches, SCAN), *flags) == {
        (True, True, True, True),
        (False, False, True, False),
    }
    assert constexprs(of(launches, CUMSUM), "HAS_DT_BIAS") == {(True,), (False,)}


@pytest.mark.parametrize("gpu, candidates", [("h200", 12), ("b200", 23)])
def test_vllms_candidates_are_those_of_the_target(
    gpu: str, candidates: int, tmp_path: Path
) -> None:
    """0.32 and later drop candidates that are miscompiled for sm_90."""
    scans = of(traced("vllm", tmp_path, MANY, gpu=gpu), SCAN)
    assert {len(launch.candidates) for launch in scans} == {candidates}


@pytest.mark.parametrize(
    "name, s",
    [
        ("sglang", signature(is_cont_batched=False)),
        ("sglang", signature(z=True)),
        ("sglang", signature(dt_dtype="fp32")),
        ("sglang", signature(D="headdim")),
        ("mamba_ssm", signature()),
        ("mamba_ssm", signature(has_initstates=False, intermediate_states=True)),
        ("mamba_ssm", signature(is_cont_batched=False, layout="unaligned")),
        ("tensorrt_llm", signature(seq_idx=True)),
        ("tensorrt_llm", signature(intermediate_states=True)),
        ("tensorrt_llm", signature(param_dtype="fp16")),
        ("tensorrt_llm", signature(dt_bias=False)),
        ("tensorrt_llm", signature(is_cont_batched=False, num_seqs=(2, 64))),
        ("vllm", signature(is_cont_batched=False)),
    ],
)
def test_what_an_engine_never_calls_with_is_refused(name: str, s: Signature) -> None:
    assert engine(name).refusal(s)


@pytest.mark.parametrize(
    "name, s",
    [
        ("sglang", signature(intermediate_states=True)),
        ("mamba_ssm", signature(is_cont_batched=False, z=True, D="none", dt_bias=False)),
        ("tensorrt_llm", signature(param_dtype="fp32")),
        ("tensorrt_llm", signature(is_cont_batched=False, num_seqs=(1, 1))),
        ("tensorrt_llm", signature(is_cont_batched=False, has_initstates=False)),
    ],
)
def test_what_an_engine_calls_with_is_not(name: str, s: Signature) -> None:
    assert engine(name).refusal(s) == ""
