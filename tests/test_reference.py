"""The float64 recurrence against cases whose answer is known without it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ssd_aot.measurement.reference import ReferenceResult, ssd_reference

HEADS, HEADDIM, GROUPS, STATES = 4, 3, 2, 5


def inputs(tokens: int, seed: int = 0) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    return {
        "x": random(tokens, HEADS, HEADDIM),
        "dt": random(tokens, HEADS).abs(),
        "A": -random(HEADS).abs(),
        "B": random(tokens, GROUPS, STATES),
        "C": random(tokens, GROUPS, STATES),
    }


def judged(given: dict[str, Tensor], lengths: list[int], **more: Any) -> ReferenceResult:
    x, dt, A, B, C = (given[name] for name in ("x", "dt", "A", "B", "C"))
    return ssd_reference(x, dt, A, B, C, lengths, **more)


def by_matrix(given: dict[str, Tensor]) -> Tensor:
    """The dual form: y = (L * C B^T) (dt x) with L the decay from one token to another."""
    x, dt, A, B, C = (given[name] for name in ("x", "dt", "A", "B", "C"))
    B, C = (t.repeat_interleave(HEADS // GROUPS, dim=1) for t in (B, C))
    total = torch.cumsum(dt * A, 0)
    decay = (
        torch.exp(total[:, None] - total[None, :]) * torch.ones(len(x), len(x)).tril()[..., None]
    )
    scores = torch.einsum("thn,shn->tsh", C, B) * decay
    return torch.einsum("tsh,sh,shp->thp", scores, dt, x)


def test_it_equals_the_dual_form() -> None:
    given = inputs(17)

    torch.testing.assert_close(judged(given, [17]).out, by_matrix(given))


def test_sequences_do_not_see_one_another_and_empty_ones_keep_their_state() -> None:
    """C61."""
    given, initial = inputs(12), torch.randn(3, HEADS, HEADDIM, STATES, dtype=torch.float64)

    together = judged(given, [7, 0, 5], initial_states=initial)

    for sequence, tokens in ((0, slice(0, 7)), (2, slice(7, 12))):
        part = {n: t if n == "A" else t[tokens] for n, t in given.items()}
        alone = judged(part, [len(part["x"])], initial_states=initial[sequence : sequence + 1])
        torch.testing.assert_close(together.out[tokens], alone.out)
        torch.testing.assert_close(together.final_states[sequence], alone.final_states[0])
    assert torch.equal(together.final_states[1], initial[1])


def test_two_parts_equal_one_shot() -> None:
    """C06."""
    given = inputs(12)
    whole = judged(given, [12], keep_states=True)
    first = judged({n: t if n == "A" else t[:5] for n, t in given.items()}, [5])
    second = judged(
        {n: t if n == "A" else t[5:] for n, t in given.items()},
        [7],
        initial_states=first.final_states,
    )

    torch.testing.assert_close(second.out, whole.out[5:])
    torch.testing.assert_close(second.final_states, whole.final_states)
    assert whole.states is not None
    torch.testing.assert_close(whole.states[4], first.final_states[0])


def test_decay_to_nothing_leaves_the_last_token_alone() -> None:
    """C60: a large |A| dt gives 0 and no NaN."""
    given = inputs(6)
    given["A"] = torch.full((HEADS,), -1e6, dtype=torch.float64)
    given["dt"] += 1.0

    result = judged(given, [6])

    B = given["B"][-1].repeat_interleave(HEADS // GROUPS, dim=0)
    last = given["x"][-1][..., None] * given["dt"][-1][:, None, None] * B[:, None, :]
    torch.testing.assert_close(result.final_states[0], last)


def test_skip_gate_bias_softplus_and_limits_do_what_their_names_say() -> None:
    given = inputs(4)
    z, bias = torch.randn(4, HEADS, HEADDIM), torch.randn(HEADS)
    per_head, per_dim = torch.randn(HEADS), torch.randn(HEADS, HEADDIM)
    plain = judged(given, [4]).out

    skipped = judged(given, [4], D=per_head).out
    torch.testing.assert_close(skipped, plain + per_head.double()[:, None] * given["x"])
    skipped = judged(given, [4], D=per_dim).out
    torch.testing.assert_close(skipped, plain + per_dim.double() * given["x"])
    gated = judged(given, [4], z=z).out
    torch.testing.assert_close(gated, plain * torch.nn.functional.silu(z.double()))
    steps = torch.nn.functional.softplus(given["dt"] + bias.double()).clamp(0.1, 0.5)
    stepped = judged(given, [4], dt_bias=bias, dt_softplus=True, dt_limit=(0.1, 0.5)).out
    torch.testing.assert_close(stepped, judged({**given, "dt": steps}, [4]).out)
