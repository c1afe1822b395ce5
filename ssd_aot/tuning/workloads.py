"""The batches that stand for serving: those a launch is timed on and those it is judged on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ssd_aot.layouts import Form
from ssd_aot.ops.execution import executing
from ssd_aot.problems import Problem, Results, make_problem
from ssd_aot.signatures import Signature
from ssd_aot.sources.batches import DECODE_TOKENS, lengths_of
from ssd_aot.tuning.groups import Call, LayoutKeeper, Member

MANY_TOKENS = 8192
"""Tokens of a full step: what engines batch at most unless told otherwise."""

ROTATED_BYTES = 128 * 2**20
"""Input sets together exceed this where `MOST_SETS` of them do: over twice the L2 of the GPUs here
(50 MB on H100 and H200, 126 MB on B200 as its own two halves)."""
FEWEST_SETS, MOST_SETS = 3, 6


@dataclass(frozen=True)
class Workload:
    """A batch under a call, for timing."""

    call: Call
    lengths: tuple[int, ...]

    @property
    def name(self) -> str:
        """Heads on the rank, sequences, and tokens in all."""
        return f"{self.call.signature.nheads}h {len(self.lengths)}x{sum(self.lengths)}"


@dataclass(frozen=True)
class Check:
    """A problem under a call with the reference's answer."""

    call: Call
    problem: Problem
    wanted: Results


def workloads(member: Member, multiprocessors: int) -> tuple[Workload, ...]:
    """Few tokens and many, in shapes for which the engine's rule takes the call's form: three with
    the most heads, and one with the fewest."""
    found: dict[str, Workload] = {}
    for number, call in enumerate(member.calls):
        shapes = _shapes(call.form, call.signature.nheads, multiprocessors)
        for count, length in shapes if number == 0 else shapes[1:2]:
            workload = Workload(
                call, lengths_around(call.signature, member.sequences, count, length)
            )
            found.setdefault(workload.name, workload)
    return tuple(found.values())


def _shapes(form: Form, heads: int, multiprocessors: int) -> tuple[tuple[int, int], ...]:
    """(sequences, tokens of each): the second fills the GPU."""
    if form == "short_segments":
        return (1, 1024), (1, 2048), (2, 512)
    if form == "segments":
        return (1, 1024), (1, MANY_TOKENS), (2, 2048)
    filling = min(64, max(2, -(-2 * multiprocessors // heads)))
    return (1, 256), (filling, MANY_TOKENS // filling), (16, 512)


def lengths_around(
    signature: Signature, sequences: tuple[int, int], count: int, length: int
) -> tuple[int, ...]:
    """Uneven lengths around `length` where the signature allows them."""
    count = min(max(count, sequences[0]), sequences[1])
    unit = signature.chunk_size if signature.lengths == "chunk_aligned" else 1
    length = min(length, signature.max_num_batched_tokens // count)
    length = max(unit, length // unit * unit)
    if unit > 1 or not signature.is_cont_batched or count == 1:
        return (length,) * count
    # Pairs that are longer and shorter by the same, so that the tokens in all stay.
    lean = [length * (1 + pair % 3) // 8 for pair in range(count // 2)]
    uneven = [length + sign * by for by in lean for sign in (-1, 1)]
    return tuple(uneven + [length] * (count % 2))


def timed_problems(workload: Workload, device: torch.device) -> list[Problem]:
    """Random inputs enough that the cache forgets a set before it comes round again."""
    return rotated_problems(workload.call.signature, workload.lengths, device)


def rotated_problems(
    signature: Signature, lengths: Sequence[int], device: torch.device
) -> list[Problem]:
    """As `timed_problems`, for a batch under a signature."""
    problems: list[Problem] = []
    for seed in range(MOST_SETS):
        problem = make_problem(signature, lengths, device=device, decode_tokens=1, seed=seed)
        problems.append(problem)
        read = sum(t.nbytes for t in (problem.x, problem.B, problem.C, problem.dt))
        if seed + 1 >= FEWEST_SETS and read * (seed + 1) >= ROTATED_BYTES:
            break
    return problems


def checks(member: Member, device: torch.device) -> list[Check]:
    """Problems of serving's own shapes: one sequence of several segments and many short ones, odd
    lengths, changes of sequence inside a chunk, an empty sequence, views behind decode tokens."""
    made: list[Check] = []
    for call in member.calls:
        wide = replace(call.signature, num_seqs=member.sequences)
        for number, lengths in enumerate(dict.fromkeys(lengths_of(wide))):
            problem = make_problem(
                call.signature, lengths, device=device,
                decode_tokens=DECODE_TOKENS[number % 2], seed=1000 + number,
            )  # fmt: skip
            made.append(Check(call, problem, problem.reference()))
    return made


def scans_of(call: Call, problems: Sequence[Problem]) -> LayoutKeeper:
    """The scans that the calls come to, with outputs of their own, ready to be run many times."""
    keeper = LayoutKeeper()
    with executing(keeper):
        for problem in problems:
            call.run(problem)
    return keeper
