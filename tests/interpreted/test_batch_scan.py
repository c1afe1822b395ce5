"""The two batch signatures against the float64 recurrence, in both forms."""

from __future__ import annotations

import pytest
import torch
from cases import Problem, error, problem
from interpreting import Interpreter

from ssd_aot import ops
from ssd_aot.operation import Form
from ssd_aot.ops.execution import executing

FORMS: tuple[Form, ...] = ("walk", "segments")


def rows(p: Problem, batch: int) -> dict[str, torch.Tensor]:
    return {name: getattr(p, name).unflatten(0, (batch, -1)) for name in ("x", "dt", "B", "C")}


@pytest.mark.parametrize("form", FORMS)
def test_mamba_ssm_returns_outputs_then_final_states(form: Form) -> None:
    p = problem((45, 45))
    t = rows(p, 2)
    with executing(Interpreter(form)):
        out, final = ops.mamba_ssm.mamba_chunk_scan_combined(
            t["x"], t["dt"], p.A, t["B"], t["C"], 32, D=p.D, dt_bias=p.dt_bias,
            initial_states=p.initial_states, dt_softplus=True, return_final_states=True,
        )  # fmt: skip
    wanted = p.reference()
    assert error(out.flatten(0, 1), wanted.out) < 1e-5
    assert error(final, wanted.final_states) < 1e-5


def test_mamba_ssm_without_states_returns_the_output_alone() -> None:
    p = problem((20,), initial_states=False)
    t = rows(p, 1)
    with executing(Interpreter("walk")):
        out = ops.mamba_ssm.mamba_chunk_scan_combined(
            t["x"], t["dt"], p.A, t["B"], t["C"], 32, D=p.D, dt_bias=p.dt_bias, dt_softplus=True
        )
    assert isinstance(out, torch.Tensor)
    assert error(out[0], p.reference().out) < 1e-5


@pytest.mark.parametrize("form", FORMS)
def test_seq_idx_separates_the_sequences_of_a_row(form: Form) -> None:
    """The final state of a row is that of its last sequence."""
    p = problem((3, 30, 17), initial_states=False)
    t = rows(p, 1)
    owner = torch.repeat_interleave(torch.arange(3), torch.tensor([3, 30, 17]))[None]
    with executing(Interpreter(form)):
        out, final = ops.mamba_ssm.mamba_chunk_scan_combined(
            t["x"], t["dt"], p.A, t["B"], t["C"], 32, D=p.D, dt_bias=p.dt_bias,
            seq_idx=owner.to(torch.int32), dt_softplus=True, return_final_states=True,
        )  # fmt: skip
    wanted = p.reference()
    assert error(out[0], wanted.out) < 1e-5
    assert error(final[0], wanted.final_states[-1]) < 1e-5


@pytest.mark.parametrize("form", FORMS)
def test_the_initial_state_reaches_the_tokens_of_sequence_zero_only(form: Form) -> None:
    p = problem((20, 20))
    assert p.initial_states is not None
    alone = Problem(
        **{**vars(p), "initial_states": torch.stack([p.initial_states[0], torch.zeros(2, 16, 16)])}
    )
    t = rows(p, 1)
    owner = torch.repeat_interleave(torch.arange(2), 20)[None]
    with executing(Interpreter(form)):
        out = ops.mamba_ssm.mamba_chunk_scan_combined(
            t["x"], t["dt"], p.A, t["B"], t["C"], 32, D=p.D, dt_bias=p.dt_bias,
            initial_states=p.initial_states[:1], seq_idx=owner, dt_softplus=True,
        )  # fmt: skip
    assert error(out[0], alone.reference().out) < 1e-5


@pytest.mark.parametrize("form", FORMS)
def test_tensorrt_llm_writes_out_and_returns_the_states_asked_for(form: Form) -> None:
    p = problem((20, 0, 33))
    t = rows(p, 1)
    out = torch.full_like(t["x"], float("nan"))
    with executing(Interpreter(form)):
        final, varlen = ops.tensorrt_llm.mamba_chunk_scan_combined(
            t["x"], t["dt"], p.A, t["B"], t["C"], 32, D=p.D, dt_bias=p.dt_bias,
            initial_states=p.initial_states, cu_seqlens=p.cu_seqlens, dt_softplus=True, out=out,
            return_final_states=True, return_varlen_states=True,
        )  # fmt: skip
    wanted = p.reference()
    assert error(out[0], wanted.out) < 1e-5
    assert error(varlen, wanted.final_states) < 1e-5
    assert torch.equal(final[0], varlen[-1])


def test_rows_may_be_views_of_a_longer_batch() -> None:
    """Batch rows that do not follow one another in memory."""
    p = problem((40, 40), z=True)
    t = rows(p, 2)
    cut = {name: tensor[:, 3:30] for name, tensor in t.items()}
    assert p.z is not None and p.initial_states is not None
    z = p.z.unflatten(0, (2, -1))[:, 3:30]
    with executing(Interpreter("walk")):
        out = ops.mamba_ssm.mamba_chunk_scan_combined(
            cut["x"], cut["dt"], p.A, cut["B"], cut["C"], 32, D=p.D, z=z, dt_bias=p.dt_bias,
            initial_states=p.initial_states, dt_softplus=True,
        )  # fmt: skip
    packed = Problem(
        **{**vars(p), "lengths": (27, 27), "z": z.flatten(0, 1),
           **{name: tensor.flatten(0, 1) for name, tensor in cut.items()}}
    )  # fmt: skip
    assert error(out.flatten(0, 1), packed.reference().out) < 1e-5
