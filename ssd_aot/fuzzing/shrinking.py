"""The smallest batch that still fails: fewer sequences, shorter ones, everything else at rest.

As property-based testing shrinks: one change after the other, kept where the batch still fails,
until none helps. Every change makes the batch simpler, so the search ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ssd_aot.axes import AXES, AxisValue
from ssd_aot.fuzzing.batch import Batch, Memory, Prefill
from ssd_aot.fuzzing.launch_code import LaunchCode
from ssd_aot.fuzzing.promises import Deployment

Rank = tuple[tuple[int | str, ...], ...]


def shrink(
    batch: Batch,
    fails: Callable[[Batch], bool],
    deployments: Sequence[Deployment],
    code: LaunchCode,
) -> Batch:
    """The simplest batch that this search finds among those that are promised and fail.

    `batch` itself does; `deployments` are those that the spec promises.
    """
    search = _Search(batch, fails)
    while True:
        before = search.best
        search.take_first(_deployments(search.best, deployments, code))
        search.take_first(replace(search.best, call=c) for c in code.calls(search.best.deployment))
        for name, value in Memory()._asdict().items():
            search.take(replace(search.best, memory=search.best.memory._replace(**{name: value})))
        search.take(replace(search.best, initial_states=False, sequences=_fresh(search.best)))
        search.fewer_sequences()
        search.shorter_sequences()
        search.take(replace(search.best, sequences=_fresh(search.best)))
        search.least(0, search.best.decode_tokens, _behind)
        if search.best == before:
            return before


@dataclass
class _Search:
    """The simplest failing batch so far."""

    best: Batch
    fails: Callable[[Batch], bool]

    def take(self, tried: Batch) -> bool:
        """Go on from `tried` if it is promised and fails."""
        kept = tried != self.best and tried.promised and self.fails(tried)
        if kept:
            self.best = tried
        return kept

    def take_first(self, tries: Iterator[Batch]) -> None:
        """Go on from the first that fails; what comes after the best itself is no simpler."""
        start = self.best
        for tried in tries:
            if tried == start or self.take(tried):
                return

    def least(self, low: int, high: int, change: Callable[[Batch, int], Batch]) -> None:
        """The least number that fails, `high` being the one that does now: the lowest at once,
        else by bisection, which finds one whose next lower neighbour does not fail."""
        start = self.best
        if low >= high or self.take(change(start, low)):
            return
        while high - low > 1:
            middle = (low + high) // 2
            if self.take(change(start, middle)):
                high = middle
            else:
                low = middle

    def fewer_sequences(self) -> None:
        """The first few of them, or as few with the tokens of all."""
        self.least(1, len(self.best.sequences), _first)
        self.least(1, len(self.best.sequences), _merged)

    def shorter_sequences(self) -> None:
        """All as short as can be, all but the first, then each of the first few."""
        unit = self.best.deployment.unit
        start = self.best
        short = tuple(Prefill(cached, unit) for cached, _ in start.sequences)
        if self.take(replace(start, sequences=short)):
            return
        if start.deployment.axes["IS_CONT_BATCHED"]:
            self.take(replace(start, sequences=(start.sequences[0], *short[1:])))
            self.take(replace(start, sequences=_gathered(start, short)))
            for place in range(min(len(start.sequences), 8)):
                units = self.best.sequences[place].tokens // unit
                self.least(1, units, partial(_with_units, place=place))
        else:
            self.least(1, start.sequences[0].tokens // unit, _with_rows)


def _deployments(
    batch: Batch, deployments: Sequence[Deployment], code: LaunchCode
) -> Iterator[Batch]:
    """The batch in deployments that are simpler in one respect and the same in all others."""
    own = _rank(batch.deployment)
    ranks = ((_rank(other), other) for other in deployments)
    near = [(rank, other) for rank, other in ranks if _simpler_in_one(rank, own)]
    for _, other in sorted(near, key=lambda pair: pair[0]):
        skew = batch.memory.skew
        if (skew != "none") != (other.axes["layout"] == "unaligned"):
            skew = "start" if skew == "none" else "none"
        call = batch.call if batch.call in code.calls(other) else code.calls(other)[0]
        memory = batch.memory._replace(skew=skew)
        yield replace(batch, deployment=other, call=call, memory=memory)


def _simpler_in_one(rank: Rank, than: Rank) -> bool:
    differ = [(one, other) for one, other in zip(rank, than, strict=True) if one != other]
    return len(differ) == 1 and differ[0][0] < differ[0][1]


def _rank(own: Deployment) -> Rank:
    """The model's size and name, tp, and of each axis how far its value is from the usual one."""
    model = own.model
    size = model.nheads * model.headdim * model.dstate
    return (
        (size, model.name),
        (own.tp,),
        *((_unusual(own, name, value),) for name, value in sorted(own.axes.items())),
    )


def _unusual(own: Deployment, name: str, value: AxisValue) -> int:
    axis = AXES[name]
    if value in axis.default or ("same" in axis.default and value == own.axes["dtype"]):
        return 0
    return 1 + axis.allowed.index(value)


def _fresh(batch: Batch) -> tuple[Prefill, ...]:
    return tuple(Prefill(0, tokens) for _, tokens in batch.sequences)


def _first(batch: Batch, count: int) -> Batch:
    return replace(batch, sequences=batch.sequences[:count])


def _merged(batch: Batch, count: int) -> Batch:
    """`count` sequences, the first with the tokens of those that go as well."""
    first, *others = batch.sequences[:count]
    gone = sum(tokens for _, tokens in batch.sequences[count:])
    return replace(batch, sequences=(Prefill(first.cached, first.tokens + gone), *others))


def _gathered(batch: Batch, short: tuple[Prefill, ...]) -> tuple[Prefill, ...]:
    """All tokens but the least in the first sequence."""
    rest = batch.tokens - sum(tokens for _, tokens in short[1:])
    return (Prefill(short[0].cached, rest), *short[1:])


def _with_units(batch: Batch, units: int, place: int) -> Batch:
    sequences = list(batch.sequences)
    sequences[place] = Prefill(sequences[place].cached, units * batch.deployment.unit)
    return replace(batch, sequences=tuple(sequences))


def _with_rows(batch: Batch, units: int) -> Batch:
    tokens = units * batch.deployment.unit
    return replace(batch, sequences=tuple(Prefill(c, tokens) for c, _ in batch.sequences))


def _behind(batch: Batch, decode_tokens: int) -> Batch:
    return replace(batch, decode_tokens=decode_tokens)
