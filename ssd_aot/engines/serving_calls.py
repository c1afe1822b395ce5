"""An engine's operation on real tensors, as its layers call it, for a reference to judge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ssd_aot.engines.engine import Engine
from ssd_aot.problems import Problem, Results, make_problem
from ssd_aot.signatures import Signature
from ssd_aot.sources.batches import DECODE_TOKENS, lengths_of


@dataclass(frozen=True)
class ServingBatch:
    """A batch under a signature: `lengths` of its sequences behind `decode_tokens` rows of others.

    With `final_states` these are written to a cache; without, and for intermediate states, the
    operation returns states. Of two ways to make the call that an engine has, `alternate` is the
    rarer one, which its `prepare` knows. An engine whose prefill tokens come first, or whose
    operation returns states, has no use for `decode_tokens` and `final_states`.
    """

    signature: Signature
    lengths: tuple[int, ...]
    decode_tokens: int = 1
    seed: int = 0
    final_states: bool = True
    alternate: bool = False

    @property
    def name(self) -> str:
        """Heads on the rank, sequences, and tokens in all."""
        return f"{self.signature.nheads}h {len(self.lengths)}x{sum(self.lengths)}"

    def problem(self, device: torch.device | str, *, fill: bool = True) -> Problem:
        return make_problem(
            self.signature, self.lengths, device=device, decode_tokens=self.decode_tokens,
            seed=self.seed, fill=fill,
        )  # fmt: skip


@dataclass(frozen=True)
class PreparedCall:
    """The operation on one problem.

    `run` launches it, into outputs that are filled with NaN where the caller makes them, and
    returns what the engine's operation does; `gather` makes results of that.
    """

    run: Callable[[], Any]
    gather: Callable[[Any], Results]

    def results(self) -> Results:
        """Run it once."""
        return self.gather(self.run())


def call_without_memory(engine: Engine, batch: ServingBatch) -> None:
    """What `prepare` makes of a batch, called on the meta device."""
    engine.prepare(batch, batch.problem("meta")).run()


CHUNKS = (1, 2, 16)
"""One of each of Triton's classes of integers: 1, multiples of 16, and others."""


def check_batches(signature: Signature) -> Iterator[ServingBatch]:
    """Batches of serving's own shapes on which a candidate is judged: one sequence of several
    chunks and many short ones, odd lengths, views behind decode tokens, caches of both kinds."""
    # No scheduler puts a sequence without tokens into a batch, and engines need not be right there.
    every = [tuple(max(1, length) for length in lengths) for lengths in lengths_of(signature)]
    every = list(dict.fromkeys([*every, *_of_count_classes(signature)]))
    for number, lengths in enumerate(every):
        yield ServingBatch(
            signature, lengths, DECODE_TOKENS[number % 2], 1000 + number, alternate=number % 2 == 1
        )
    for number, lengths in enumerate(every[::2]):
        # So that the alternate way comes about with lengths of each kind.
        yield ServingBatch(signature, lengths, 0, 1100 + number, final_states=False, alternate=True)


def _of_count_classes(signature: Signature) -> Iterator[tuple[int, ...]]:
    """Lengths whose numbers of sequences, tokens and chunks are of each of Triton's classes, 1,
    multiples of 16 and others, as far as the signature has them: kernels may be passed any.

    Strides of 64 bits are left out, whose 100,000 tokens no reference gets through in time.
    """
    size, (low, high) = signature.chunk_size, signature.num_seqs
    aligned = signature.lengths == "chunk_aligned"
    if low == 1 and not aligned:
        yield (1,)
    classes = {(n == 1, n % 16 == 0): n for n in reversed(range(low, min(high, low + 16) + 1))}
    for count in sorted(classes.values()):
        for tokens in (size * chunks for chunks in CHUNKS):
            for some in (tokens,) if aligned else (tokens, tokens - 3 * count):
                yield _shared_out(signature, some, count)


def _shared_out(signature: Signature, tokens: int, count: int) -> tuple[int, ...]:
    """`tokens` in all, or somewhat more, for `count` sequences as the signature has them."""
    unit = signature.chunk_size if signature.lengths == "chunk_aligned" else 1
    each = max(unit, tokens // count // unit * unit)
    last = max(each, (tokens - each * (count - 1)) // unit * unit)
    return (*([each] * (count - 1)), last if signature.is_cont_batched else each)
