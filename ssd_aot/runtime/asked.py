"""What a program asked Triton for, in full: as the guard tells it and as `explain` reads it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ssd_aot.bundle.json_readers import (
    Misfit,
    NotJson,
    constant,
    count,
    each,
    pair,
    parse_json,
    record,
    sha256,
    table,
    text,
)
from ssd_aot.bundle.manifest import KernelText, Toolchain
from ssd_aot.bundle.manifest_reading import read_toolchain
from ssd_aot.errors import UsageError
from ssd_aot.launches import Argument, Configuration, Constant, Launch

Kind = Literal["compilation", "tuning", "host module"]
MARK = "miss"


@dataclass(frozen=True)
class Asked:
    """A kernel or tuning result that was asked for under Triton's `key`.

    `launch` has every constexpr, what a candidate chose among them, and `configuration` none; both
    are None for a tuning, and where Triton's call could not be read. `arch` is Triton's number of
    the architecture (90). `candidates` are a tuning's, as Triton stores them. `nearest` is what the
    guard found nearest, in words.
    """

    kind: Kind
    kernel: str
    key: str
    launch: Launch | None = None
    configuration: Configuration | None = None
    source_sha256: str = ""
    source: KernelText | None = None
    tuning_key: tuple[Any, ...] | None = None
    candidates: tuple[str, ...] = ()
    arch: int = 0
    toolchain: Toolchain | None = None
    nearest: str = ""

    def line(self) -> str:
        """One line of JSON; parts that are not known are left out."""
        form: dict[str, Any] = {"ssd_aot": MARK, "kind": self.kind, "kernel": self.kernel,
                                "key": self.key}  # fmt: skip
        if self.nearest:
            form["nearest"] = self.nearest
        if self.launch is not None and self.configuration is not None:
            form["launch"] = _launch_form(self.launch)
            form["configuration"] = self.configuration.to_json()
        if self.tuning_key is not None:
            form["tuning_key"] = list(self.tuning_key)
            form["candidates"] = list(self.candidates)
        if self.source_sha256:
            form["source_sha256"] = self.source_sha256
        if self.source is not None:
            form["source"] = vars(self.source)
        if self.arch:
            form["arch"] = self.arch
        if self.toolchain is not None:
            environment = dict(self.toolchain.environment)
            form["toolchain"] = {**vars(self.toolchain), "environment": environment}
        return json.dumps(form, default=str)

    @classmethod
    def from_line(cls, line: str, where: str) -> Asked:
        """The inverse of `line`, whatever a logger put before it. Raises UsageError."""
        start = line.find("{")
        try:
            data = parse_json(line[start:] if start >= 0 else line)
            if not isinstance(data, dict) or data.get("ssd_aot") != MARK:
                raise NotJson('an object with "ssd_aot": "miss"')
            return _read(data)
        except NotJson as error:
            found, place = error.what, where
        except Misfit as misfit:
            found, place = f"{misfit.what}: {misfit.found}", f"{where}: {misfit.path}"
        raise UsageError(
            "not a line of the guard's",
            where=place,
            found=found,
            wanted="the JSON line that a process with a bundle in service wrote for a miss",
            mend="give that line alone",
        )


def _launch_form(launch: Launch) -> dict[str, Any]:
    return {
        "kernel": launch.kernel,
        "constexprs": [[name, _form(value)] for name, value in launch.constexprs],
        "arguments": [[a.name, a.spelled()] for a in launch.arguments],
        "options": {name: _form(value) for name, value in launch.options},
    }


def _form(value: Any) -> Any:
    """JSON has no infinities: they are {"float": "inf"}, as in a manifest."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value if isinstance(value, bool | int | float | str | None) else str(value)


def _options(pairs: tuple[tuple[str, Constant], ...]) -> tuple[tuple[str, Constant], ...]:
    return tuple(sorted(pairs))


def _arguments(value: Any) -> tuple[Argument, ...]:
    return tuple(Argument.parse(*item) for item in each(pair(text, text))(value))


def _configuration(value: Any) -> Configuration:
    values = dict(table(constant)(value))
    for name in ("num_warps", "num_stages"):
        count(values.get(name))
    return Configuration.from_json(values)


def _key_value(value: Any) -> Any:
    """A value of a tuning key; JSON has lists in the place of tuples."""
    return tuple(_key_value(item) for item in value) if isinstance(value, list) else value


_READERS: Mapping[str, Any] = {
    "kind": text,
    "kernel": text,
    "key": text,
    "nearest": text,
    "launch": record(
        Launch,
        kernel=text,
        constexprs=each(pair(text, constant)),
        arguments=_arguments,
        options=lambda value: _options(table(constant)(value)),
    ),
    "configuration": _configuration,
    "tuning_key": each(_key_value),
    "candidates": each(text),
    "source_sha256": sha256,
    "source": record(KernelText, sha256=sha256, line=count),
    "arch": count,
    "toolchain": read_toolchain,
}


def _read(data: dict[str, Any]) -> Asked:
    fields = {name: value for name, value in data.items() if name != "ssd_aot"}
    unknown = fields.keys() - _READERS.keys()
    if unknown:
        raise Misfit("an unknown field", min(unknown), "no such field").inside(min(unknown))
    for name in ("kind", "kernel", "key"):
        if name not in fields:
            raise Misfit("a field is missing", name, "a value").inside(name)
    read = {}
    for name, value in fields.items():
        try:
            read[name] = _READERS[name](value)
        except Misfit as misfit:
            raise misfit.inside(name) from None
    return Asked(**read)
