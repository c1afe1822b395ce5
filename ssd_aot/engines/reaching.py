"""Which of a spec's signatures an engine ever calls with."""

from __future__ import annotations

from collections import Counter

from ssd_aot.engines.engine import engine
from ssd_aot.errors import SpecError
from ssd_aot.signatures import Signature, expand
from ssd_aot.spec import Spec


def reached_signatures(spec: Spec) -> tuple[Signature, ...]:
    """The signatures of the spec that its engine calls with.

    An axis value that the engine does not have falls away with its signatures (see `left_out`).
    Raises SpecError where none is left.
    """
    source = engine(spec.source)
    every = expand(spec)
    kept = tuple(signature for signature in every if not source.refusal(signature))
    if every and not kept:
        first = every[0]
        raise SpecError(
            f"{source.name} has no such calls",
            where=spec.place("matrix"),
            found=f"{first.id}: {source.refusal(first)}",
            wanted=f"signatures that {source.name} serves",
            mend="change the axis in the matrix, or build the builtin kernels",
        )
    return kept


def left_out(spec: Spec) -> tuple[str, ...]:
    """One sentence for each reason for which signatures fall away."""
    source, every = engine(spec.source), expand(spec)
    counts = Counter(filter(None, (source.refusal(signature) for signature in every)))
    return tuple(
        f"{count} of {len(every)} signatures are left out: {reason}"
        for reason, count in sorted(counts.items())
    )
