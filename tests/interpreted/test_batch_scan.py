"""The two batch signatures against the float64 recurrence, in both forms."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from cases import error, problem
from interpreting import Interpreter

from ssd_aot import ops
from ssd_aot.layouts import Form
from ssd_aot.ops.execution import executing

FORMS: tuple[Form, ...] = ("walk", "segments")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", ["engine", "unaligned"])
def test_mamba_ssm_returns_outputs_then_final_states(form: Form, layout: str) -> None:
    p = problem((45, 45), is_cont_batched=False, layout=layout)
    with executing(Interpreter(form)):
        found = p.run()
    wanted = p.reference()
    assert error(found.out, wanted.out) < 1e-5
    assert error(found.states, wanted.states) < 1e-5


def test_mamba_ssm_without_states_returns_the_output_alone() -> None:
    p = problem((20,), is_cont_batched=False, has_initstates=False)
    with executing(Interpreter("walk")):
        found = p.run(final_states=False)
    assert found.states is None
    assert error(found.out, p.reference().out) < 1e-5


@pytest.mark.parametrize("form", FORMS)
def test_seq_idx_separates_the_sequences_of_a_row(form: Form) -> None:
    """The final state of a row is that of its last sequence."""
    packed = problem((3, 30, 17), has_initstates=False)
    wanted = packed.reference()
    owner = torch.repeat_interleave(torch.arange(3), torch.tensor([3, 30, 17]))[None]
    with executing(Interpreter(form)):
        out, final = ops.mamba_ssm.mamba_chunk_scan_combined(
            packed.x[None], packed.dt[None], packed.A, packed.B[None], packed.C[None], 32,
            D=packed.D, dt_bias=packed.dt_bias, seq_idx=owner.to(torch.int32), dt_softplus=True,
            return_final_states=True,
        )  # fmt: skip
    assert wanted.states is not None
    assert error(out[0], wanted.out) < 1e-5
    assert error(final[0], wanted.states[-1]) < 1e-5


@pytest.mark.parametrize("form", FORMS)
def test_the_initial_state_reaches_the_tokens_of_sequence_zero_only(form: Form) -> None:
    p = problem((20, 20))
    assert p.initial_states is not None
    alone = replace(
        p, initial_states=p.initial_states * torch.tensor([1.0, 0.0])[:, None, None, None]
    )
    owner = torch.repeat_interleave(torch.arange(2), 20)[None]
    with executing(Interpreter(form)):
        out = ops.mamba_ssm.mamba_chunk_scan_combined(
            p.x[None], p.dt[None], p.A, p.B[None], p.C[None], 32, D=p.D, dt_bias=p.dt_bias,
            initial_states=p.initial_states[:1], seq_idx=owner, dt_softplus=True,
        )  # fmt: skip
    assert isinstance(out, torch.Tensor)
    assert error(out[0], alone.reference().out) < 1e-5


@pytest.mark.parametrize("form", FORMS)
def test_tensorrt_llm_writes_out_and_returns_the_states_asked_for(form: Form) -> None:
    p = problem((20, 0, 33))
    out = torch.full((1, *p.x.shape), float("nan"))
    with executing(Interpreter(form)):
        returned = ops.tensorrt_llm.mamba_chunk_scan_combined(
            p.x[None], p.dt[None], p.A, p.B[None], p.C[None], 32, D=p.D, dt_bias=p.dt_bias,
            initial_states=p.initial_states, cu_seqlens=p.cu_seqlens, dt_softplus=True, out=out,
            return_final_states=True, return_varlen_states=True,
        )  # fmt: skip
    assert isinstance(returned, tuple)
    final, varlen = returned
    wanted = p.reference()
    assert error(out[0], wanted.out) < 1e-5
    assert error(varlen, wanted.states) < 1e-5
    assert torch.equal(final[0], varlen[-1])


def test_rows_may_be_views_of_a_longer_batch() -> None:
    """Batch rows that do not follow one another in memory."""
    p = problem((40, 40), z=True, is_cont_batched=False)
    assert p.z is not None
    cut = {name: getattr(p, name)[:, 3:30] for name in ("x", "dt", "B", "C", "z")}
    part = replace(p, lengths=(27, 27), **cut)
    with executing(Interpreter("walk")):
        found = part.run()
    assert error(found.out, part.reference().out) < 1e-5
