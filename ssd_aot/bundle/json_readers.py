"""JSON text to values, and strict readers of them: each takes a parsed value and returns it typed,
or says what does not fit and where. Written by hand because a manifest is read while a server
starts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from ssd_aot.launches import Constant

T = TypeVar("T")
Reader = Callable[[Any], T]

DEEPEST = 64
"""Levels of lists and objects inside one another; what is written here has fewer than ten."""

_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NON_FINITE = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}


class NotJson(ValueError):
    """Text that is no JSON, or none that is read here; `line` is 0 where it is not known."""

    def __init__(self, what: str, line: int = 0) -> None:
        super().__init__(what)
        self.what, self.line = what, line

    def place(self, file: str) -> str:
        return f"{file}:{self.line}" if self.line else file


def parse_json(content: str | bytes) -> Any:
    """The value of a JSON text. Raises NotJson, also for NaN, infinities, and nesting that ends
    the recursion of Python's parser."""
    try:
        return json.loads(content, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise NotJson(error.msg, error.lineno) from error
    except ValueError as error:
        raise NotJson(str(error)) from error
    except RecursionError:
        text = content if isinstance(content, str) else content.decode(errors="replace")
        # Without its cause, which is some thousand lines long.
        raise too_deep(_line_of_depth(text)) from None


def too_deep(line: int = 0) -> NotJson:
    return NotJson(f"nested more than {DEEPEST} levels deep", line)


def is_shallow(value: Any, levels: int = DEEPEST) -> bool:
    """Whether lists and objects lie at most `levels` inside one another."""
    if type(value) not in (list, dict):
        return True
    inner = value.values() if type(value) is dict else value
    return levels > 0 and all(
        is_shallow(item, levels - 1) for item in inner if type(item) in (list, dict)
    )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _line_of_depth(text: str) -> int:
    """The line in which text is nested more than `DEEPEST` levels deep."""
    depth = 0
    for match in _BRACKETS.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(match[0], 0)
        if depth > DEEPEST:
            return text.count("\n", 0, match.start()) + 1
    return 0


class Misfit(Exception):
    """A value that does not fit; readers on the way out put their step before the path."""

    def __init__(self, what: str, found: str, wanted: str) -> None:
        super().__init__(what)
        self.what, self.found, self.wanted = what, found, wanted
        self.path = ""

    def inside(self, step: str) -> Misfit:
        joint = "." if self.path and not self.path.startswith("[") else ""
        self.path = step + joint + self.path
        return self


def spelled(value: Any) -> str:
    """A value as a message shows it, cut short."""
    try:
        text = json.dumps(value)
    except RecursionError:
        return "a value that is nested too deeply to show"
    return text if len(text) <= 60 else text[:57] + "..."


def _of_type(kind: type, wanted: str) -> Reader[Any]:
    def read(value: Any) -> Any:
        # `type(...) is`: a bool is no integer here.
        if type(value) is not kind:
            raise Misfit("a value of the wrong type", spelled(value), wanted)
        return value

    return read


text: Reader[str] = _of_type(str, "a string")
flag: Reader[bool] = _of_type(bool, "true or false")
_object: Reader[dict[str, Any]] = _of_type(dict, "an object")


def json_object(value: Any) -> dict[str, Any]:
    """An object of any fields, which can be written again: so not nested without end."""
    if not is_shallow(value):
        found = f"more than {DEEPEST} levels"
        raise Misfit("nested too deeply", found, f"at most {DEEPEST} levels")
    return _object(value)


def count(value: Any) -> int:
    """An integer of 0 or more."""
    if type(value) is not int or value < 0:
        raise Misfit("a value of the wrong type", spelled(value), "an integer of 0 or more")
    return value


def sha256(value: Any) -> str:
    if type(value) is not str or not _SHA256.fullmatch(value):
        raise Misfit("not a sha256", spelled(value), "64 lower-case hexadecimal digits")
    return value


def microseconds(value: Any) -> float | None:
    if value is not None and type(value) not in (int, float):
        raise Misfit("a value of the wrong type", spelled(value), "a number or null")
    return None if value is None else float(value)


def constant(value: Any) -> Constant:
    """What a constexpr or option may hold. JSON has no infinities: they are {"float": "inf"}."""
    if value is None or type(value) in (bool, int, float, str):
        return value  # type: ignore[no-any-return]
    if type(value) is dict and value.keys() == {"float"} and value["float"] in _NON_FINITE:
        return _NON_FINITE[value["float"]]
    raise Misfit("a value of the wrong type", spelled(value), "a constant")


def each(read: Reader[T]) -> Reader[tuple[T, ...]]:
    """A list whose items all are read by `read`."""

    def read_list(value: Any) -> tuple[T, ...]:
        if type(value) is not list:
            raise Misfit("a value of the wrong type", spelled(value), "a list")
        items: list[T] = []
        try:
            for item in value:
                items.append(read(item))
        except Misfit as misfit:
            raise misfit.inside(f"[{len(items)}]") from None
        return tuple(items)

    return read_list


def table(read: Reader[T]) -> Reader[tuple[tuple[str, T], ...]]:
    """An object with keys of any name, as (key, value) pairs in the order of the text."""

    def read_table(value: Any) -> tuple[tuple[str, T], ...]:
        if type(value) is not dict:
            raise Misfit("a value of the wrong type", spelled(value), "an object")
        key = ""
        pairs: list[tuple[str, T]] = []
        try:
            for key, item in value.items():
                pairs.append((key, read(item)))
        except Misfit as misfit:
            raise misfit.inside(f"[{json.dumps(key)}]") from None
        return tuple(pairs)

    return read_table


def pair(first: Reader[Any], second: Reader[Any]) -> Reader[tuple[Any, Any]]:
    def read(value: Any) -> tuple[Any, Any]:
        if type(value) is not list or len(value) != 2:
            raise Misfit("a value of the wrong type", spelled(value), "a list of two")
        return first(value[0]), second(value[1])

    return read


def record(build: Callable[..., T], /, **fields: Reader[Any]) -> Reader[T]:
    """An object with exactly these fields, each read by its reader and passed to `build`."""
    readers = tuple(fields.items())

    def read(value: Any) -> T:
        if type(value) is not dict:
            raise Misfit("a value of the wrong type", spelled(value), "an object")
        if value.keys() != fields.keys():
            raise _wrong_fields(value.keys() - fields.keys(), fields.keys() - value.keys())
        values = {}
        name = ""
        try:
            for name, reader in readers:
                values[name] = reader(value[name])
        except Misfit as misfit:
            raise misfit.inside(name) from None
        return build(**values)

    return read


def _wrong_fields(unknown: set[str], missing: set[str]) -> Misfit:
    if missing:
        name = min(missing)
        return Misfit("a field is missing", "nothing", "a value").inside(name)
    return Misfit("an unknown field", "a value", "no such field").inside(min(unknown))
