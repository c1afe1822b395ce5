"""What the fuzzer draws: batches as an engine's scheduler makes them, all that a spec promises."""

from __future__ import annotations

import ast
import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import ROOT
from fuzzing_builders import SUPER, WIDE, drawn, spec_of

from ssd_aot.fuzzing.batch import Batch, Prefill
from ssd_aot.fuzzing.misses import described
from ssd_aot.fuzzing.scheduling import Scheduler, Server
from ssd_aot.signatures import Signature, expand
from ssd_aot.spec import Spec, load_spec, shipped_spec


@pytest.fixture(scope="module")
def nemotron() -> Spec:
    return load_spec([shipped_spec(SUPER)])


def test_a_seed_draws_the_same_batches_again_and_another_seed_draws_others(nemotron: Spec) -> None:
    assert drawn(nemotron, 50) == drawn(nemotron, 50)
    assert drawn(nemotron, 50) != drawn(nemotron, 50, seed=1)


def test_every_batch_is_one_that_the_spec_promises(tmp_path: Path) -> None:
    for batch in drawn(spec_of(WIDE, tmp_path), 3000):
        assert batch.promised, described(batch)


def test_what_is_excluded_or_impossible_is_never_drawn(tmp_path: Path) -> None:
    for batch in drawn(spec_of(WIDE, tmp_path), 3000):
        own, axes, count = batch.deployment, batch.deployment.axes, len(batch.sequences)
        assert count <= 40
        assert not (batch.initial_states and (count == 2 or count > 9))  # `many` is excluded
        assert not (own.tp == 5 and own.unit > 1)
        assert not (axes["IS_CONT_BATCHED"] and axes["seq_idx"])
        assert axes["IS_CONT_BATCHED"] or not axes["intermediate_states"]


def test_every_signature_of_a_spec_has_a_batch_and_every_batch_a_signature(tmp_path: Path) -> None:
    spec = spec_of(WIDE, tmp_path)
    signatures = expand(spec)

    def of(batch: Batch) -> set[Signature]:
        own, axes = batch.deployment, batch.deployment.axes
        return {
            s
            for s in signatures
            if (s.model, s.tp, s.has_initstates) == (own.model.name, own.tp, batch.initial_states)
            and s.num_seqs[0] <= len(batch.sequences) <= s.num_seqs[1]
            and (s.is_cont_batched, s.seq_idx) == (axes["IS_CONT_BATCHED"], axes["seq_idx"])
            and s.intermediate_states == axes["intermediate_states"]
            and (s.layout, s.lengths) == (axes["layout"], axes["lengths"])
        }

    found = [of(batch) for batch in drawn(spec, 1500)]

    assert all(found)
    assert set().union(*found) == set(signatures)


RARE: dict[str, Callable[[Batch], bool]] = {
    "one sequence of one token": lambda b: b.tokens == 1,
    "every seat taken": lambda b: len(b.sequences) == b.deployment.max_num_seqs,
    "hundreds of sequences": lambda b: len(b.sequences) > 500,
    "behind an odd number of decode tokens": lambda b: b.decode_tokens % 2 == 1,
    "behind speculative tokens": lambda b: b.memory.drafts > 0 and b.decode_tokens > 0,
    "one sequence, cached": lambda b: len(b.sequences) == 1 and b.sequences[0].cached > 0,
    "cached and fresh sequences together": lambda b: (
        {bool(s.cached) for s in b.sequences} == {False, True}
    ),
    "states given, nothing cached": lambda b: (
        b.initial_states and not any(s.cached for s in b.sequences)
    ),
    "a prefix that ends inside a chunk": lambda b: any(s.cached % 128 for s in b.sequences),
    "more tokens than the spec's budget": lambda b: b.tokens > b.deployment.max_num_batched_tokens,
    "a paged state cache": lambda b: b.memory.pages,
    "eight ranks": lambda b: b.deployment.tp == 8,
}


@pytest.mark.parametrize("case", RARE)
def test_what_is_rare_in_serving_is_drawn(case: str, nemotron: Spec) -> None:
    assert sum(map(RARE[case], drawn(nemotron, 1000))) >= 3


def test_the_generator_knows_nothing_of_the_planners_scenarios() -> None:
    """A check that shared them would repeat their mistakes."""
    for module in (ROOT / "ssd_aot" / "fuzzing").glob("*.py"):
        names = {
            name
            for node in ast.walk(ast.parse(module.read_text()))
            for name in (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else []
            )
        }
        planners = (
            "problems", "tracing", "plan", "sources", "scenarios", "signatures",
            "chunked_batches", "shapes", "serving_calls",
        )  # fmt: skip
        shared = {name for name in names if name.rpartition(".")[2] in planners}
        # Only to name the type of the plan that is fuzzed.
        assert shared <= ({"ssd_aot.plan"} if module.name == "checking.py" else set()), module


def scheduler(**server: Any) -> Scheduler:
    return Scheduler(Server(**{"seats": 8, "budget_tokens": 100, **server}), random.Random(0))


def test_a_prompt_is_cut_where_the_budget_ends_and_goes_on_from_there() -> None:
    running = scheduler()
    running.submit(70)
    running.submit(250, cached=16)

    steps = [running.step().sequences for _ in range(4)]

    assert steps[0] == (Prefill(0, 70), Prefill(16, 30))
    for before, (after, *_) in itertools.pairwise(steps):
        assert after.cached == before[-1].cached + before[-1].tokens
    assert sum(sequence.tokens for step in steps for sequence in step) == 70 + 250


def test_decoding_requests_come_first_with_their_drafts() -> None:
    running = scheduler(drafts=1)
    running.decode(3)
    running.submit(500)

    step = running.step()

    assert step.decode_tokens == 6
    assert step.sequences == (Prefill(0, 94),)


def test_no_more_requests_run_than_there_are_seats() -> None:
    running = scheduler(seats=4)
    running.decode(1)
    for _ in range(9):
        running.submit(5)

    assert len(running.step().sequences) == 3


def test_a_request_that_lost_its_state_begins_anew() -> None:
    running = scheduler(budget_tokens=64, memory_tokens=150)
    running.submit(200)
    steps = [running.step().sequences for _ in range(4)]

    assert [cached for ((cached, _),) in steps] == [0, 64, 128, 0]


def test_aligned_lengths_stay_aligned_where_the_budget_cuts() -> None:
    running = scheduler(unit=64, budget_tokens=100)
    running.submit(256)

    assert running.step().sequences == (Prefill(0, 64),)
