"""The launch record: one kernel call as Triton sees it, its identity and its JSON form.

A launch names a function, the value of each constexpr that the problem decides, and the type and
specialisation class of each runtime argument. A configuration adds what a candidate chooses; the
two together are a variant, which is exactly one compilation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Constant = bool | int | float | str | None

POINTER_CLASSES = ("aligned", "unaligned")
INTEGER_CLASSES = ("==1", "%16", "other")


def canonical_json(value: Any) -> str:
    """One spelling for one value: sorted keys, no spaces, ASCII only."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


@dataclass(frozen=True, order=True)
class Argument:
    """A runtime argument: `type` as Triton spells it (`*bf16`, `i32`, `fp32`) and its class.

    Classes: pointers `aligned` (16 bytes) or `unaligned`; integers `==1`, `%16` or `other`; an
    argument that is None has type `none` and no class, floats have no class. One that is a function
    or another constant has `=` and its spelling as type. The type of a tuple spells its elements,
    each with its class after a slash: `(*bf16/aligned,i32/==1,none)`.
    """

    name: str
    type: str
    specialisation: str = ""

    def spelled(self) -> str:
        return f"{self.type} {self.specialisation}".rstrip()

    @property
    def is_tuple(self) -> bool:
        return self.type.startswith("(")

    @property
    def elements(self) -> tuple[Argument, ...]:
        """The elements of a tuple, named by their places: `x.0`, `x.1`."""
        found, depth = [""], 0
        for letter in self.type[1:-1]:
            depth += {"(": 1, ")": -1}.get(letter, 0)
            if letter == "," and depth == 0:
                found.append("")
            else:
                found[-1] += letter
        return tuple(
            Argument(f"{self.name}.{place}", *((text,) if text[0] == "(" else text.split("/", 1)))
            for place, text in enumerate(filter(None, found))
        )

    @property
    def leaves(self) -> tuple[Argument, ...]:
        """The argument itself, or the elements of a tuple and of the tuples in it."""
        if not self.is_tuple:
            return (self,)
        return tuple(leaf for element in self.elements for leaf in element.leaves)

    @classmethod
    def of_elements(cls, name: str, elements: Iterable[Argument]) -> Argument:
        """The tuple of these, the inverse of `elements`."""
        texts = (f"{e.type}/{e.specialisation}" if e.specialisation else e.type for e in elements)
        return cls(name, f"({','.join(texts)})")

    @classmethod
    def parse(cls, name: str, spelled: str) -> Argument:
        kind, _, specialisation = spelled.partition(" ")
        return cls(name, kind, specialisation)


@dataclass(frozen=True)
class Launch:
    """One kernel call as Triton sees it, without the candidate's own choices.

    `constexprs` hold what the problem decides, in the kernel's parameter order; `arguments` every
    runtime parameter in order; `options` are compile options that the launch itself fixes.
    """

    kernel: str
    constexprs: tuple[tuple[str, Constant], ...]
    arguments: tuple[Argument, ...]
    options: tuple[tuple[str, Constant], ...] = ()

    @cached_property
    def identity(self) -> str:
        """sha256 over the canonical JSON form."""
        return hashlib.sha256(canonical_json(self.to_json()).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        return {
            "kernel": self.kernel,
            "constexprs": [list(pair) for pair in self.constexprs],
            "arguments": [[a.name, a.spelled()] for a in self.arguments],
            "options": dict(self.options),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Launch:
        return cls(
            kernel=data["kernel"],
            constexprs=tuple((name, value) for name, value in data["constexprs"]),
            arguments=tuple(Argument.parse(name, text) for name, text in data["arguments"]),
            options=tuple(sorted(data["options"].items())),
        )

    def __str__(self) -> str:
        """Everything of it but the scalars without a class, which tell no two launches apart."""
        values = ", ".join(f"{name}={value}" for name, value in self.constexprs)
        telling = [a for a in self.arguments if a.type.startswith("*") or a.specialisation]
        classes = ", ".join(f"{a.name}: {a.spelled()}" for a in telling)
        return f"{self.kernel}[{values}]({classes})"


@dataclass(frozen=True, order=True)
class Configuration:
    """What a candidate chooses: tile constexprs, warps, stages, and a register cap or None."""

    constexprs: tuple[tuple[str, Constant], ...]
    num_warps: int
    num_stages: int
    maxnreg: int | None = None

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = dict(self.constexprs)
        data.update(num_warps=self.num_warps, num_stages=self.num_stages)
        if self.maxnreg is not None:
            data["maxnreg"] = self.maxnreg
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Configuration:
        own = ("num_warps", "num_stages", "maxnreg")
        return cls(
            constexprs=tuple((k, v) for k, v in sorted(data.items()) if k not in own),
            num_warps=data["num_warps"],
            num_stages=data["num_stages"],
            maxnreg=data.get("maxnreg"),
        )

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.to_json().items())


@dataclass(frozen=True)
class Variant:
    """A launch with one candidate configuration: exactly one compilation."""

    launch: Launch
    configuration: Configuration

    @cached_property
    def identity(self) -> str:
        form = {"launch": self.launch.to_json(), "configuration": self.configuration.to_json()}
        return hashlib.sha256(canonical_json(form).encode()).hexdigest()
