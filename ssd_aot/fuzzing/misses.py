"""A miss: a launch that a promised batch asks for and the bundle lacks, told by one example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import yaml

from ssd_aot.axes import AXES
from ssd_aot.fuzzing.batch import Batch, Memory
from ssd_aot.launches import Launch
from ssd_aot.verification.findings import Finding

SHOWN_SEQUENCES = 4


@dataclass(frozen=True)
class Miss:
    """`example` is the smallest batch found that asks for `launch` on `target`. Batch `first` of
    the row, counted from 0, was the first that did, of `batches` in all. `planned` says whether
    the spec's plan has the launch; `nearest` what tells the nearest launch there from it."""

    target: str
    launch: Launch
    example: Batch
    first: int
    batches: int
    planned: bool
    nearest: str

    def finding(self) -> Finding:
        spec = flow(covering_spec(self.example))
        if self.planned:
            mend = f"build it anew: the spec's plan has this launch; the least spec is {spec}"
        else:
            mend = f"a gap in the planner, to be reported; till then add a spec: {spec}"
        return Finding(
            "failed",
            "fuzz",
            f"no {self.launch.kernel} for {self.target} in {self.batches} batches, "
            f"the smallest: {described(self.example)}",
            self.nearest,
            str(self.launch),
            mend,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "launch": self.launch.to_json(),
            "example": batch_json(self.example),
            "first": self.first,
            "batches": self.batches,
            "planned": self.planned,
            "nearest": self.nearest,
            "spec": covering_spec(self.example),
        }


def described(batch: Batch) -> str:
    """The batch in a sentence."""
    own, sequences = batch.deployment, batch.sequences
    alike = len(set(sequences)) == 1
    shown = sequences[:1] if alike else sequences[:SHOWN_SEQUENCES]
    texts = [f"{tokens}" + (f" behind {cached} cached" if cached else "")
             for cached, tokens in shown]  # fmt: skip
    more = 0 if alike else len(sequences) - len(shown)
    lengths = ", ".join(texts) + (f" and {more} more" if more else "")
    count = f"{len(sequences)} sequence{'s' if len(sequences) > 1 else ''}"
    each = " each" if alike and len(sequences) > 1 else ""
    parts = [
        f"{count} of {lengths} token{'s' if batch.tokens > 1 else ''}{each}",
        "with initial states" if batch.initial_states else "without initial states",
    ]
    if batch.decode_tokens:
        parts.append(f"behind {batch.decode_tokens} decode tokens")
    usual = Memory()._asdict()
    parts += [
        f"{name} {value}" if not isinstance(value, bool) else name.replace("_", " ")
        for name, value in batch.memory._asdict().items()
        if value != usual[name]
    ]
    axes = own.axes
    parts.append(f"{own.model.name} tp {own.tp} ({axes['dtype']}, states {axes['state_dtype']})")
    parts.append(f"called as {batch.call}")
    return ", ".join(parts)


def covering_spec(batch: Batch) -> dict[str, Any]:
    """The least spec that promises the batch, as a document; axes at their default are left out."""
    own, count = batch.deployment, len(batch.sequences)
    model = {**own.model.shape, "chunk_size": own.axes["chunk_size"], "tp": [own.tp]}
    matrix = {
        name: [value]
        for name, value in own.axes.items()
        if name != "chunk_size" and (value,) != _usual(name, own.axes["dtype"])
    }
    matrix |= {"HAS_INITSTATES": [batch.initial_states], "num_seqs": [count]}
    document = {"version": 1, "models": {own.model.name: model}, "matrix": matrix}
    if count > 1024:
        document["max_num_seqs"] = count
    if own.unit * count > 8192:
        document["max_num_batched_tokens"] = own.unit * count
    return document


def _usual(name: str, dtype: str) -> tuple[Any, ...]:
    default = AXES[name].default
    return (dtype,) if default == ("same",) else default


def flow(document: dict[str, Any]) -> str:
    """A spec in one line of YAML."""
    text: str = yaml.safe_dump(document, default_flow_style=True, sort_keys=False, width=2**31)
    return text.strip()


def batch_json(batch: Batch) -> dict[str, Any]:
    own = batch.deployment
    return {
        "model": {"name": own.model.name, **own.model.to_json()},
        "tp": own.tp,
        "axes": dict(own.values),
        "sequences": [sequence._asdict() for sequence in batch.sequences],
        "decode_tokens": batch.decode_tokens,
        "initial_states": batch.initial_states,
        "call": batch.call,
        "memory": batch.memory._asdict(),
    }
