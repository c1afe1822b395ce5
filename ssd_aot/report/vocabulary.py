"""Words for what a manifest and a record hold, for readers who have not read the code."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

STATUSES: Mapping[str, str] = {
    "measured": "measured on this GPU model",
    "borrowed": "borrowed from other measurements",
    "pinned": "fixed by the spec",
    "default": "default, never measured",
    "missing": "missing",
}
"""How a configuration came to be taken, the best founded first; `missing` is for no code at all."""

SIGNATURE_STATUSES: Mapping[str, str] = {
    "measured": "every launch was measured on this GPU model",
    "borrowed": "some launches are borrowed from other measurements",
    "pinned": "some launches are fixed by the spec",
    "default": "some launches are defaults that nobody measured; filled is the share that was",
    "missing": "a launch is missing: calls that reach it fail",
}
"""The same, of the least founded launch that a signature needs."""

AXES: tuple[str, ...] = (
    "max_num_batched_tokens", "dtype", "dt_dtype", "param_dtype", "state_dtype", "is_cont_batched",
    "layout", "lengths", "D", "z", "dt_bias", "dt_softplus", "seq_idx", "intermediate_states",
    "has_initstates", "num_seqs",
)  # fmt: skip
"""Fields of a signature that neither the model nor tensor parallelism decides."""


def status_kind(status: str) -> str:
    """The kind of a manifest's tuning status: `borrowed` for `borrowed from h100`."""
    kind = status.partition(" ")[0]
    return kind if kind in STATUSES else "default"


def plural(count: int, noun: str, many: str = "") -> str:
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def size(count: float) -> str:
    """Bytes as people read them; a kB is 1000 bytes."""
    if count < 1000:
        return plural(int(count), "byte")
    return f"{count / 1000:.1f} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"


def kibibytes(count: int) -> str:
    """Shared memory as GPUs count it."""
    return f"{count / 1024:.0f} KiB" if count % 1024 == 0 else f"{count / 1024:.1f} KiB"


def microseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def axis_words(axis: str, value: Any) -> str:
    """An axis value of a signature, in a few words."""
    if axis == "num_seqs":
        low, high = value
        return plural(low, "sequence") if low == high else f"{low:,} to {high:,} sequences"
    flags = {
        "has_initstates": ("initial states", "no initial states"),
        "is_cont_batched": ("packed sequences", "batches of equal length"),
        "z": ("gated by z", "no gate z"),
        "dt_bias": ("dt with bias", "dt without bias"),
        "dt_softplus": ("softplus on dt", "no softplus on dt"),
        "seq_idx": ("seq_idx given", "no seq_idx"),
        "intermediate_states": ("states after every chunk", "no states after chunks"),
    }
    if axis in flags:
        return flags[axis][0 if value else 1]
    spelled = {
        "dtype": f"{value} inputs",
        "dt_dtype": f"{value} dt",
        "param_dtype": f"{value} parameters",
        "state_dtype": f"{value} states",
        "max_num_batched_tokens": f"up to {value} tokens a step",
        "layout": "views as engines slice them" if value == "engine" else "unaligned views",
        "lengths": "any lengths" if value == "any" else "lengths in whole chunks",
        "D": {"none": "no D", "head": "D for each head"}.get(value, "D for each column"),
    }
    return spelled.get(axis, f"{axis} {value}")


def natural(text: str) -> tuple[tuple[int, str], ...]:
    """A key that sorts the numbers in texts by size: `h1-3b` before `h1-34b`."""
    parts = re.findall(r"\d+|\D+", text)
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in parts)


def shortened(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: letters - 1] + "…"
