"""Model geometry, its limits, and how tensor parallelism divides it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ssd_aot.errors import SpecError

CHUNK_SIZES = (64, 128, 256)
"""Chunk sizes that engines serve with."""

TP_SIZES = (1, 2, 4, 8)
"""Tensor-parallel sizes that are listed for a model when nobody says which."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Limit:
    """What a whole number of a geometry may be: `low`..`high`, a multiple of `step`."""

    low: int
    high: int
    step: int = 1

    def __contains__(self, value: int) -> bool:
        return self.low <= value <= self.high and value % self.step == 0

    def __str__(self) -> str:
        multiple = f", a multiple of {self.step}" if self.step > 1 else ""
        return f"a whole number from {self.low} to {self.high}{multiple}"


# Head and state dims: what the kernels' tiles reach, in steps of a 16-byte row of bf16. The other
# bounds only catch slips of the pen.
LIMITS: dict[str, Limit] = {
    "nheads": Limit(1, 4096),
    "headdim": Limit(16, 128, 8),
    "dstate": Limit(16, 256, 8),
    "ngroups": Limit(1, 4096),
    "conv_kernel": Limit(1, 16),
}


@dataclass(frozen=True)
class ModelGeometry:
    """A model's SSD layers before tensor parallelism.

    `nheads` heads of `headdim` channels; B and C of `ngroups` groups of `dstate` states; the
    convolution is `conv_kernel` tokens wide. `tp` are the tensor-parallel sizes to build for and
    `chunk_size` the chunk sizes in tokens. Values are as the spec gave them; `check` judges them.
    """

    name: str
    nheads: int
    headdim: int
    dstate: int
    ngroups: int
    conv_kernel: int = 4
    tp: tuple[int, ...] = (1,)
    chunk_size: tuple[int, ...] = (128,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tp", tuple(sorted(set(self.tp))))
        object.__setattr__(self, "chunk_size", tuple(sorted(set(self.chunk_size))))

    @property
    def shape(self) -> dict[str, int]:
        """What two models of one name must agree in: everything but what to build it for."""
        return {name: getattr(self, name) for name in LIMITS}

    def check(self) -> None:
        """Raises SpecError where a value is outside its limit; `where` is the field.

        `per_rank` judges the tensor-parallel sizes.
        """
        check_name(self.name)
        for field, value in self.shape.items():
            if value not in LIMITS[field]:
                raise SpecError(
                    f"{field} is outside its limits",
                    where=field,
                    found=str(value),
                    wanted=str(LIMITS[field]),
                )
        if self.nheads % self.ngroups:
            raise SpecError(
                "the groups do not divide the heads",
                where="ngroups",
                found=f"nheads {self.nheads}, ngroups {self.ngroups}",
                wanted="nheads to be a multiple of ngroups",
            )
        for size in self.chunk_size:
            check_chunk_size(size)

    def per_rank(self, tp: int) -> tuple[int, int]:
        """Heads and groups of one rank of `tp`.

        The engines' rule (vLLM's `MambaMixer2` and `extra_groups_for_head_shards`): heads are
        divided; groups are divided where `tp` divides them, and where they divide `tp` each rank
        has a copy of the one group that its heads read. Raises SpecError for any other size.
        """
        replicated = tp > 0 and tp % self.ngroups == 0
        if tp < 1 or self.nheads % tp or (self.ngroups % tp and not replicated):
            raise SpecError(
                f"{self.name} cannot be divided by tensor parallelism {tp}",
                where="tp",
                found=f"nheads {self.nheads}, ngroups {self.ngroups}, tp {tp}",
                wanted="tp divides nheads, and tp divides ngroups or ngroups divides tp",
                mend=f"use tp {', '.join(map(str, self.divisions()))}",
            )
        return self.nheads // tp, max(self.ngroups // tp, 1)

    def divisions(self) -> tuple[int, ...]:
        """The usual tensor-parallel sizes that the rule allows."""
        return tuple(
            size
            for size in TP_SIZES
            if self.nheads % size == 0 and (self.ngroups % size == 0 or size % self.ngroups == 0)
        )

    def to_json(self) -> dict[str, Any]:
        return {**self.shape, "tp": list(self.tp), "chunk_size": list(self.chunk_size)}

    @classmethod
    def from_json(cls, name: str, data: dict[str, Any]) -> ModelGeometry:
        lists = {"tp": tuple(data["tp"]), "chunk_size": tuple(data["chunk_size"])}
        return cls(name=name, **{**data, **lists})


def check_name(name: str) -> None:
    """A model's name is part of signature ids and of file names. Raises SpecError."""
    if not _NAME.fullmatch(name):
        raise SpecError(
            "not a model name",
            where="models",
            found=name or "an empty name",
            wanted="letters, digits, '.', '_' and '-', beginning with a letter or digit",
            mend="give the model such a name",
        )


def check_chunk_size(size: int) -> None:
    """Raises SpecError for a chunk size that the scan is not written for."""
    if size in CHUNK_SIZES:
        return
    power = size > 0 and size & (size - 1) == 0
    near = min(CHUNK_SIZES, key=lambda allowed: abs(allowed - size))
    raise SpecError(
        f"chunk size {size} is outside 64..256"
        if power
        else f"chunk size {size} is not a power of two",
        where="chunk_size",
        found=str(size),
        wanted=f"one of {', '.join(map(str, CHUNK_SIZES))}",
        mend=f"write {near}",
    )
