"""What is measured together: launches that differ only in what leaves their speed alone.

Launches of one kernel and geometry that differ in initial states, state dtype, parameter dtype and
the like form a group. All candidates are measured on one member, the representative (with initial
states, and float32 states where there are such). The other members are held against the reference
under the winner and timed under the winner and the default alone; where the winner is wrong for
one of them, that member takes the next best candidate that is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

from torch import Tensor

from ssd_aot.launches import Launch
from ssd_aot.layouts import Blocking, Counts, Form, ScanLayout
from ssd_aot.operation import launches
from ssd_aot.ops.execution import executing
from ssd_aot.problems import Problem, Results, make_problem
from ssd_aot.signatures import Signature
from ssd_aot.tuning.compiled_candidates import CandidateLaunch

KERNEL_ORDER = ("scan", "segment_states", "decay", "state_passing")
"""The order in which kernels are searched, one pass: those that take most of the time first."""

SHARED = ("HEADDIM", "DSTATE", "PRECISION", "D_FORM", "HAS_Z", "PACKED")
"""Constexprs that the members of a group have in common; of SEGMENT only whether it is 0."""


@dataclass(frozen=True)
class Call:
    """One way of calling the operation: its signature, the form that runs, whether a batch call
    asks for final states, and the launches it comes to, in order."""

    signature: Signature
    form: Form
    final_states: bool
    launches: tuple[Launch, ...]

    def run(self, problem: Problem) -> Results:
        return problem.run(final_states=self.final_states)


@dataclass(frozen=True)
class Member:
    """A launch and the calls it is measured through: that with most heads, then, where it differs,
    that with fewest. `sequences` is the range that any signature with this launch allows."""

    candidates: CandidateLaunch
    calls: tuple[Call, ...]
    sequences: tuple[int, int]

    @property
    def launch(self) -> Launch:
        return self.candidates.planned.launch


@dataclass(frozen=True)
class Group:
    """The representative is the first member."""

    members: tuple[Member, ...]

    @property
    def kernel(self) -> str:
        return self.members[0].launch.kernel

    @property
    def signatures(self) -> int:
        """How many signatures need a launch of the group: its importance."""
        return sum(len(member.candidates.planned.signatures) for member in self.members)


def make_groups(
    signatures: Sequence[Signature], candidates: Sequence[CandidateLaunch]
) -> tuple[Group, ...]:
    """Groups in the order they are searched: by kernel, then those that most signatures need."""
    calls = calls_of(signatures)
    planned = {entry.planned.launch for entry in candidates if entry.usable}
    using: dict[Launch, list[Call]] = {}
    for call in calls:
        if planned.issuperset(call.launches):
            for launch in call.launches:
                using.setdefault(launch, []).append(call)
    found: dict[tuple[object, ...], list[Member]] = {}
    for entry in candidates:
        member = _member(entry, using.get(entry.planned.launch, []))
        if member is not None:
            found.setdefault(_group_key(member.launch), []).append(member)
    groups = [Group(tuple(sorted(members, key=_representative))) for members in found.values()]
    return tuple(
        sorted(
            groups,
            key=lambda g: (
                KERNEL_ORDER.index(g.kernel), -g.signatures, str(g.members[0].launch),
            ),
        )
    )  # fmt: skip


def calls_of(signatures: Sequence[Signature]) -> list[Call]:
    """Every call of the signatures in every form that can carry it out, from meta tensors."""
    found: list[Call] = []
    described: dict[Signature, list[tuple[bool, ScanLayout]]] = {}
    for signature in signatures:
        # Names and ranges reach no launch: signatures that differ in these alone share a layout.
        bare = replace(signature, model="", tp=1, conv_kernel=0, num_seqs=(1, 1))
        if bare not in described:
            described[bare] = _layouts(bare)
        for final_states, layout in described[bare]:
            forms: tuple[Form, ...] = ("segments",) if layout.chunk_states else get_args(Form)
            for form in forms:
                found.append(Call(signature, form, final_states, launches(layout, form)))
    return found


@dataclass
class LayoutKeeper:
    """An executor that keeps what it was called with in place of running it."""

    blocking: Blocking = field(default_factory=Blocking)
    kept: list[tuple[Mapping[str, Tensor], ScanLayout, Counts]] = field(default_factory=list)

    def run(self, tensors: Mapping[str, Tensor], layout: ScanLayout, counts: Counts) -> None:
        self.kept.append((dict(tensors), layout, counts))


def _layouts(signature: Signature) -> list[tuple[bool, ScanLayout]]:
    unit = signature.chunk_size if signature.lengths == "chunk_aligned" else 1
    problem = make_problem(signature, (unit,), device="meta")
    layouts: list[tuple[bool, ScanLayout]] = []
    for final_states in (True,) if signature.is_cont_batched else (True, False):
        keeper = LayoutKeeper()
        with executing(keeper):
            problem.run(final_states=final_states)
        layouts += [(final_states, layout) for _, layout, _ in keeper.kept]
    return layouts


def _member(entry: CandidateLaunch, calls: Sequence[Call]) -> Member | None:
    needed = frozenset(entry.planned.signatures)
    own = [call for call in calls if call.signature.id in needed]
    if not own or not entry.usable:
        return None
    ranges = [call.signature.num_seqs for call in own]
    largest = max(own, key=lambda call: (call.signature.nheads, call.signature.id))
    smallest = min(own, key=lambda call: (call.signature.nheads, call.signature.id))
    few = largest.signature.nheads == smallest.signature.nheads
    return Member(
        candidates=entry,
        calls=(largest,) if few else (largest, smallest),
        sequences=(min(low for low, _ in ranges), max(high for _, high in ranges)),
    )


def _group_key(launch: Launch) -> tuple[object, ...]:
    values = dict(launch.constexprs)
    first = next(a for a in launch.arguments if a.name in ("x", "dt", "states"))
    return (
        launch.kernel,
        tuple(values.get(name) for name in SHARED),
        bool(values.get("SEGMENT")),
        first.spelled(),
    )


def _representative(member: Member) -> tuple[bool, bool, str]:
    launch = member.launch
    types = {a.name: a.type for a in launch.arguments}
    states = ("initial_states", "final_states", "chunk_states")
    wide = all(types.get(name, "*fp32") in ("*fp32", "none") for name in states)
    return not dict(launch.constexprs).get("HAS_INITSTATES", True), not wide, str(launch)
