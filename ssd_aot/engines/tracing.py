"""What an engine launches under each signature, by its own code on tensors without memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from ssd_aot.engines.engine import engine
from ssd_aot.engines.presenting import presented
from ssd_aot.engines.serving_calls import ServingBatch
from ssd_aot.errors import HostError
from ssd_aot.signatures import Signature
from ssd_aot.targets import Target
from ssd_aot.triton_compat import CapturedLaunch, capturing


@dataclass(frozen=True)
class TracedLaunch:
    """A captured launch with the ids of the signatures that need it."""

    captured: CapturedLaunch
    signatures: tuple[str, ...]


def trace_engine(
    name: str, target: Target, signatures: Sequence[Signature]
) -> tuple[TracedLaunch, ...]:
    """Every launch of the signatures on `target`, sorted; for a process of its own, which has not
    imported the engine yet.

    The signatures are those that the engine calls with. Raises HostError for an engine that does
    not take the stand-in for a GPU or launches nothing.
    """
    source = engine(name)
    found: dict[CapturedLaunch, list[str]] = {}
    traced: dict[Signature, dict[CapturedLaunch, None]] = {}
    seen: dict[CapturedLaunch, None] = {}
    with ExitStack() as stack:
        stack.enter_context(presented(target))
        stack.enter_context(capturing(lambda launch: seen.setdefault(launch)))
        stack.enter_context(source.imported(target))
        for signature in signatures:
            # Names reach no launch: models of one geometry share a trace.
            bare = replace(signature, model="", tp=1)
            if bare not in traced:
                seen.clear()
                for call in source.calls(bare):
                    call()
                traced[bare] = dict(seen)
            for launch in traced[bare]:
                found.setdefault(launch, []).append(signature.id)
    if signatures and not found:
        raise HostError(
            "the engine's operation launched no kernel",
            where=source.package,
            found="a call that went past Triton",
            wanted="launches of Triton kernels",
            mend="report the engine's version",
        )
    ordered = sorted(found.items(), key=lambda item: str(item[0].launch))
    return tuple(TracedLaunch(launch, tuple(ids)) for launch, ids in ordered)


Reached = frozenset[tuple[str, str]]
"""What a batch launches: the identity of each launch with Triton's key for its tuning, or with
nothing where it has none."""


def trace_batches(
    name: str, target: Target, batches: Sequence[ServingBatch]
) -> tuple[Reached, ...]:
    """What each batch reaches; for a process of its own, as `trace_engine`."""
    source = engine(name)
    seen: list[CapturedLaunch] = []
    found: list[Reached] = []
    with ExitStack() as stack:
        stack.enter_context(presented(target))
        stack.enter_context(capturing(seen.append))
        stack.enter_context(source.imported(target))
        for batch in batches:
            seen.clear()
            source.prepare(batch, batch.problem("meta")).run()
            found.append(
                frozenset((c.launch.identity, c.tuning.key if c.tuning else "") for c in seen)
            )
    return tuple(found)
