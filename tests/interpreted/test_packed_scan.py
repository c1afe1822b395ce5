"""The packed scan against the float64 recurrence, in both forms."""

from __future__ import annotations

import pytest
import torch
from cases import TOLERANCE, Problem, error, problem
from hypothesis import given, settings
from hypothesis import strategies as st
from interpreting import Interpreter

from ssd_aot.operation import Form
from ssd_aot.ops.execution import executing

FORMS: tuple[Form, ...] = ("walk", "segments")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def assert_right(p: Problem, interpreter: Interpreter) -> None:
    with executing(interpreter):
        out, states = p.run()
    wanted = p.reference()
    bound = TOLERANCE[p.x.dtype]
    assert error(out, wanted.out) < bound
    assert error(states, wanted.final_states) < max(bound, TOLERANCE[p.state_dtype])


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    groups = draw(st.sampled_from([1, 2, 3]))
    return problem(
        draw(st.lists(st.sampled_from([0, 1, 2, 15, 16, 17, 31, 33, 70]), min_size=1, max_size=3)),
        heads=groups * draw(st.sampled_from([1, 2])),
        groups=groups,
        headdim=draw(st.sampled_from([16, 24, 40])),
        dstate=draw(st.sampled_from([16, 24])),
        dtype=draw(st.sampled_from(DTYPES)),
        state_dtype=draw(st.sampled_from(DTYPES)),
        D=draw(st.sampled_from(["none", "head", "headdim"])),
        z=draw(st.booleans()),
        dt_bias=draw(st.booleans()),
        dt_softplus=draw(st.booleans()),
        dt_limit=draw(st.sampled_from([(0.0, float("inf")), (0.01, 0.3)])),
        initial_states=draw(st.booleans()),
        seed=draw(st.integers(0, 2**16)),
    )


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(p=problems(), state_np=st.booleans(), block_p=st.sampled_from([16, 32]))
def test_any_problem_matches_the_recurrence(
    form: Form, p: Problem, state_np: bool, block_p: int
) -> None:
    assert_right(p, Interpreter(form, state_np=state_np, block_p=block_p))


@pytest.mark.parametrize("form", FORMS)
def test_an_empty_sequence_keeps_its_initial_state_and_leaves_the_others_alone(form: Form) -> None:
    """C61."""
    p = problem((20, 0, 20))
    with executing(Interpreter(form)):
        out, states = p.run()
    wanted = p.reference()
    assert p.initial_states is not None
    assert torch.equal(states[1], p.initial_states[1])
    assert error(out, wanted.out) < 1e-5
    assert error(states, wanted.final_states) < 1e-5


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rate", [1e2, 1e4, 1e8])
def test_strong_decay_stays_finite_and_equal_to_the_recurrence(form: Form, rate: float) -> None:
    """C60: differences of large running sums round to slightly positive."""
    p = problem((50,), rate=rate)
    with executing(Interpreter(form)):
        out, states = p.run()
    wanted = p.reference()
    assert torch.isfinite(out).all()
    assert error(out, wanted.out) < 1e-3
    assert error(states, wanted.final_states) < 1e-3


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("state_dtype", DTYPES)
def test_each_state_dtype_is_within_its_own_rounding(form: Form, state_dtype: torch.dtype) -> None:
    """C63: the input's rounding is taken out by float32 inputs."""
    p = problem((33, 40), state_dtype=state_dtype)
    with executing(Interpreter(form)):
        _, states = p.run()
    assert states.dtype == state_dtype
    rounding = {torch.float32: 1e-5, torch.float16: 2**-11, torch.bfloat16: 2**-7}
    assert error(states, p.reference().final_states) < rounding[state_dtype]


@pytest.mark.parametrize("form", FORMS)
def test_one_prompt_in_two_parts_equals_one_shot(form: Form) -> None:
    """C06: a single sequence that continues from its own state."""
    whole = problem((60,), initial_states=False)
    first = Problem(**{**vars(whole), "lengths": (27,), **_tokens(whole, slice(0, 27))})
    with executing(Interpreter(form)):
        out, states = whole.run()
        out_first, middle = first.run()
        second = Problem(
            **{
                **vars(whole),
                "lengths": (33,),
                **_tokens(whole, slice(27, 60)),
                "initial_states": middle,
            }
        )
        out_second, final = second.run()
    assert error(torch.cat([out_first, out_second]), out) < 1e-5
    assert error(final, states) < 1e-5


def _tokens(p: Problem, part: slice) -> dict[str, torch.Tensor]:
    return {name: getattr(p, name)[part] for name in ("x", "dt", "B", "C")}


def test_intermediate_states_follow_the_callers_chunks() -> None:
    """Chunks of the caller may be cut anywhere, for example where a cached prefix ends."""
    p = problem((5, 0, 70), state_dtype=torch.float16)
    out = torch.full_like(p.x, float("nan"))
    ends = torch.tensor([0, 5, 12, 37, 70, 75], dtype=torch.int32)
    last = torch.tensor([0, 0, 4], dtype=torch.int32)
    owner = torch.tensor([0, 2, 2, 2, 2], dtype=torch.int32)
    with executing(Interpreter("segments")):
        from ssd_aot import ops

        states = ops.mamba_chunk_scan_combined_varlen(
            p.x, p.dt, p.A, p.B, p.C, 32, p.cu_seqlens, ends, last, owner, out, D=p.D,
            dt_bias=p.dt_bias, initial_states=p.initial_states, dt_softplus=True,
            return_intermediate_states=True, state_dtype=torch.float16,
        )  # fmt: skip
    wanted = p.reference(keep_states=True)
    assert states is not None and wanted.states is not None
    assert error(out, wanted.out) < 1e-5
    assert error(states, wanted.states[ends[1:].long() - 1]) < 2**-11


@pytest.mark.parametrize("form", FORMS)
def test_final_states_go_to_their_slots_and_nowhere_else(form: Form) -> None:
    p = problem((20, 0, 33))
    cache = torch.full((6, 2, 16, 16), 7.0)
    slots = torch.tensor([4, 1, 2], dtype=torch.int64)
    out = torch.full_like(p.x, float("nan"))
    ends, last, owner = p.chunks(32)
    with executing(Interpreter(form)):
        from ssd_aot import ops

        returned = ops.mamba_chunk_scan_combined_varlen(
            p.x, p.dt, p.A, p.B, p.C, 32, p.cu_seqlens, ends, last, owner, out, D=p.D,
            dt_bias=p.dt_bias, initial_states=p.initial_states, dt_softplus=True,
            state_dtype=torch.float32, final_states_out=cache, final_state_indices=slots,
        )  # fmt: skip
    assert returned is None
    assert error(cache[slots], p.reference().final_states) < 1e-5
    untouched = [slot for slot in range(6) if slot not in slots.tolist()]
    assert bool((cache[untouched] == 7.0).all())


@pytest.mark.parametrize("form", FORMS)
def test_a_float16_intermediate_beyond_its_range_stays_finite(form: Form) -> None:
    p = problem((40,), dtype=torch.float16, D="none")
    loud = Problem(**{**vars(p), "B": p.B * 500, "C": p.C * 500, "x": p.x * 1e-3})
    with executing(Interpreter(form)):
        out, states = loud.run()
    assert torch.isfinite(out).all() and torch.isfinite(states).all()
