"""The packed scan against the float64 recurrence, in both forms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from cases import TOLERANCE, error, part, problem
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreting import Interpreter

from ssd_aot import ops
from ssd_aot.layouts import Form
from ssd_aot.ops.execution import executing
from ssd_aot.problems import Problem
from ssd_aot.serving_tensors import Chunks
from ssd_aot.signatures import Dtype

FORMS: tuple[Form, ...] = ("walk", "segments")
DTYPES: tuple[Dtype, ...] = get_args(Dtype)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    groups = draw(st.sampled_from([1, 2, 3]))
    lengths = st.sampled_from([0, 1, 2, 15, 16, 17, 31, 33, 70])
    return problem(
        draw(st.lists(lengths, min_size=1, max_size=3)),
        nheads=groups * draw(st.sampled_from([1, 2])),
        ngroups=groups,
        headdim=draw(st.sampled_from([16, 24, 40])),
        dstate=draw(st.sampled_from([16, 24])),
        dtype=draw(st.sampled_from(DTYPES)),
        dt_dtype=draw(st.sampled_from(DTYPES)),
        param_dtype=draw(st.sampled_from(DTYPES)),
        state_dtype=draw(st.sampled_from(DTYPES)),
        D=draw(st.sampled_from(["none", "head", "headdim"])),
        z=draw(st.booleans()),
        dt_bias=draw(st.booleans()),
        dt_softplus=draw(st.booleans()),
        dt_limit=draw(st.sampled_from([(0.0, float("inf")), (0.01, 0.3)])),
        has_initstates=draw(st.booleans()),
        layout=draw(st.sampled_from(["engine", "unaligned"])),
        seed=draw(st.integers(0, 2**16)),
    )


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(p=problems(), state_np=st.booleans(), block_p=st.sampled_from([16, 32]))
def test_any_problem_matches_the_recurrence(
    form: Form, p: Problem, state_np: bool, block_p: int
) -> None:
    with executing(Interpreter(form, state_np=state_np, block_p=block_p)):
        found = p.run()
    wanted = p.reference()
    bound = TOLERANCE[p.signature.dtype]
    assert error(found.out, wanted.out) < bound
    assert error(found.states, wanted.states) < max(bound, TOLERANCE[p.signature.state_dtype])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fields", [{"headdim": 48}, {"headdim": 40, "D": "headdim", "z": True}])
def test_a_head_of_two_unequal_column_blocks_matches_the_recurrence(
    form: Form, fields: dict[str, Any]
) -> None:
    p = problem((40, 7), **fields)
    with executing(Interpreter(form, block_p=32, tail_p=16)):
        found = p.run()
    wanted = p.reference()
    assert error(found.out, wanted.out) < 1e-5
    assert error(found.states, wanted.states) < 1e-5


@pytest.mark.parametrize("form", FORMS)
def test_an_empty_sequence_keeps_its_initial_state_and_leaves_the_others_alone(form: Form) -> None:
    """C61."""
    p = problem((20, 0, 20))
    with executing(Interpreter(form)):
        found = p.run()
    wanted = p.reference()
    assert p.initial_states is not None and found.states is not None
    assert torch.equal(found.states[1], p.initial_states[1])
    assert error(found.out, wanted.out) < 1e-5
    assert error(found.states, wanted.states) < 1e-5


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rate", [1e2, 1e4, 1e8])
def test_strong_decay_stays_finite_and_equal_to_the_recurrence(form: Form, rate: float) -> None:
    """C60: differences of large running sums round to slightly positive."""
    p = problem((50,), rate=rate)
    with executing(Interpreter(form)):
        found = p.run()
    wanted = p.reference()
    assert torch.isfinite(found.out).all()
    assert error(found.out, wanted.out) < 1e-3
    assert error(found.states, wanted.states) < 1e-3


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("state_dtype", DTYPES)
def test_each_state_dtype_is_within_its_own_rounding(form: Form, state_dtype: Dtype) -> None:
    """C63: the input's rounding is taken out by float32 inputs."""
    p = problem((33, 40), state_dtype=state_dtype)
    with executing(Interpreter(form)):
        states = p.run().states
    assert states is not None and states.dtype == p.state_dtype
    rounding = {"fp32": 1e-5, "fp16": 2**-11, "bf16": 2**-7}
    assert error(states, p.reference().states) < rounding[state_dtype]


@pytest.mark.parametrize("form", FORMS)
def test_one_prompt_in_two_parts_equals_one_shot(form: Form) -> None:
    """C06: a single sequence that continues from its own state."""
    whole = problem((60,), has_initstates=False)
    with executing(Interpreter(form)):
        wanted = whole.run()
        first = part(whole, slice(0, 27), None).run()
        second = part(whole, slice(27, 60), first.states).run()
    assert error(torch.cat([first.out, second.out]), wanted.out) < 1e-5
    assert error(second.states, wanted.states) < 1e-5


def test_intermediate_states_follow_the_callers_chunks() -> None:
    """Chunks of the caller may be cut anywhere, for example where a cached prefix ends."""
    ends, last, owner = [0, 5, 12, 37, 70, 75], [0, 0, 4], [0, 2, 2, 2, 2]
    chunks = Chunks(*(torch.tensor(v, dtype=torch.int32) for v in (ends, last, owner)))
    p = replace(problem((5, 0, 70), state_dtype="fp16", intermediate_states=True), chunks=chunks)
    with executing(Interpreter("segments")):
        found = p.run()
    wanted = p.reference()
    assert error(found.out, wanted.out) < 1e-5
    assert error(found.states, wanted.states) < 2**-11


@pytest.mark.parametrize("form", FORMS)
def test_final_states_go_to_their_slots_and_nowhere_else(form: Form) -> None:
    p = problem((20, 0, 33))
    cache = torch.full((6, 2, 16, 16), 7.0)
    slots = torch.tensor([4, 1, 2], dtype=torch.int64)
    with executing(Interpreter(form)):
        returned = ops.mamba_chunk_scan_combined_varlen(
            p.x, p.dt, p.A, p.B, p.C, 32, p.cu_seqlens, p.chunks.ends, p.chunks.last,
            p.chunks.owner, torch.empty(p.x.shape), D=p.D, dt_bias=p.dt_bias,
            initial_states=p.initial_states, dt_softplus=True, final_states_out=cache,
            final_state_indices=slots,
        )  # fmt: skip
    assert returned is None
    assert error(cache[slots], p.reference().states) < 1e-5
    assert bool((cache[[0, 3, 5]] == 7.0).all())


@pytest.mark.parametrize("form", FORMS)
def test_a_float16_intermediate_beyond_its_range_stays_finite(form: Form) -> None:
    p = problem((40,), dtype="fp16", D="none")
    loud = replace(p, B=p.B * 500, C=p.C * 500, x=p.x * 1e-3)
    with executing(Interpreter(form)):
        found = loud.run()
    assert found.states is not None
    assert torch.isfinite(found.out).all() and torch.isfinite(found.states).all()
