"""The axes of the matrix: what each may be, and what it is when a spec does not say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ssd_aot.geometry import CHUNK_SIZES

AxisValue = bool | int | str

DTYPES = ("bf16", "fp16", "fp32")
_EITHER = (False, True)


@dataclass(frozen=True)
class Axis:
    """`allowed` values in their order, and the `default` ones; num_seqs allows what
    `parse_num_seqs` takes."""

    name: str
    allowed: tuple[AxisValue, ...]
    default: tuple[AxisValue, ...]


AXES: Mapping[str, Axis] = {
    axis.name: axis
    for axis in (
        Axis("dtype", DTYPES, ("bf16",)),
        # `same` is the value of dtype, so that a matrix over dtype moves them together.
        Axis("dt_dtype", ("same", *DTYPES), ("same",)),
        Axis("param_dtype", ("same", *DTYPES), ("same",)),
        Axis("state_dtype", DTYPES, ("fp32",)),
        Axis("chunk_size", CHUNK_SIZES, (128,)),
        Axis("HAS_INITSTATES", _EITHER, _EITHER),
        Axis("IS_CONT_BATCHED", _EITHER, (True,)),
        Axis("num_seqs", (), ("1", "many")),
        Axis("D", ("none", "head", "headdim"), ("head",)),
        Axis("z", _EITHER, (False,)),
        Axis("dt_bias", _EITHER, (True,)),
        Axis("dt_softplus", _EITHER, (True,)),
        Axis("seq_idx", _EITHER, (False,)),
        Axis("intermediate_states", _EITHER, (False,)),
        Axis("layout", ("engine", "unaligned"), ("engine",)),
        Axis("lengths", ("any", "chunk_aligned"), ("any",)),
    )
}

NUM_SEQS_FORMS = "1, many, a number or a range such as 2..64"


def parse_num_seqs(text: str) -> str:
    """The one spelling of a num_seqs value: `many`, `4` or `2..64`. Raises ValueError."""
    if text == "many":
        return text
    match = re.fullmatch(r"([1-9][0-9]{0,17})(?: *\.\. *([1-9][0-9]{0,17}))?", text)
    if match is None:
        raise ValueError("not a number of sequences")
    low, high = int(match[1]), int(match[2] or match[1])
    if low > high:
        raise ValueError("the range runs backwards")
    return str(low) if low == high else f"{low}..{high}"


def num_seqs_bounds(text: str, max_num_seqs: int) -> tuple[int, int]:
    """The inclusive range of a parsed num_seqs value; `many` is 2 to `max_num_seqs`."""
    if text == "many":
        return 2, max_num_seqs
    low, _, high = text.partition("..")
    return int(low), int(high or low)


def ordered(name: str, values: Iterable[AxisValue]) -> tuple[AxisValue, ...]:
    """Values without repeats, in the order of the axis; numbers of sequences by size."""
    unique = set(values)
    if name == "num_seqs":
        # Text does not sort as numbers do; `many` comes last.
        return tuple(sorted(unique, key=lambda v: (v == "many", num_seqs_bounds(str(v), 0))))
    if name in AXES:
        return tuple(value for value in AXES[name].allowed if value in unique)
    return tuple(sorted(unique, key=lambda v: (isinstance(v, str), v)))
