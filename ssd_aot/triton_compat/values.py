"""The spelling of what a kernel is called with, and the way back: one text for one value.

A function stands as `fn.module:name#hash`, with Triton's hash over its source, so that another
function of that name is not taken for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import triton.language as tl
from triton.runtime.jit import JITCallable

from ssd_aot.errors import BuildError
from ssd_aot.launches import Argument, Constant
from ssd_aot.triton_compat.kernel import jit_callable, reference_of, refuse_changed_source

DTYPE = "tl."
"""Begins the spelling of one of Triton's dtypes: `tl.bf16`."""
FUNCTION = "fn."
TUPLE = "tuple."
"""Begins the spelling of a tuple; the spellings of its values follow as a JSON list."""
CONSTEXPR = "constexpr."
"""Begins the spelling of a value that was given inside `tl.constexpr`, as JSON."""
_PREFIXES = (DTYPE, FUNCTION, TUPLE, CONSTEXPR)

Path = tuple[int, ...]


def spelled(value: Any, where: str) -> Constant:
    """The spelling of a constant. Raises BuildError for one of another kind, `where` naming it."""
    if isinstance(value, tl.constexpr):
        value = value.value
    if isinstance(value, tl.dtype):
        return f"{DTYPE}{value.name}"
    if isinstance(value, JITCallable):
        return f"{FUNCTION}{reference_of(value)}#{value.cache_key}"
    # Triton's keys tell a named tuple from a plain one.
    if type(value) is tuple:
        return TUPLE + json.dumps([spelled(item, where) for item in value])
    text = isinstance(value, str) and not value.startswith(_PREFIXES)
    if value is None or text or isinstance(value, bool | int | float):
        return value  # type: ignore[no-any-return]
    raise BuildError(
        "a constexpr of this kind is not supported",
        where=where,
        found=f"{type(value).__name__} {value}",
        wanted="a number, a text, a truth value, None, a dtype, a Triton function, or a tuple "
        "of these",
    )


def decoded(value: Constant) -> Any:
    """The value of a spelling. Raises BuildError for a function that is not there or has another
    source."""
    if not isinstance(value, str):
        return value
    if value.startswith(DTYPE):
        return tl.dtype(value.removeprefix(DTYPE))
    if value.startswith(FUNCTION):
        reference, _, wanted = value.removeprefix(FUNCTION).rpartition("#")
        function = jit_callable(reference)
        refuse_changed_source(function, reference, wanted)
        return function
    if value.startswith(TUPLE):
        return tuple(decoded(item) for item in json.loads(value.removeprefix(TUPLE)))
    return value


def spelled_argument(
    name: str,
    kind: Any,
    path: Path,
    constants: Mapping[Path, Any],
    attributes: Mapping[Path, Any],
    where: str,
) -> Argument:
    """An argument by the type, constants and attributes that Triton compiles it with.

    Raises BuildError for a value of a kind that has no spelling.
    """
    if type(kind) is tuple:
        return Argument.of_elements(
            name,
            (
                spelled_argument(f"{name}.{i}", one, (*path, i), constants, attributes, where)
                for i, one in enumerate(kind)
            ),
        )
    if not isinstance(kind, str):
        raise BuildError(
            "a tuple of this kind is not supported",
            where=f"{where}: {name}",
            found=type(kind).__name__,
            wanted="a plain tuple",
        )
    if kind == "constexpr":
        value = constants[path]
        if value is None:
            return Argument(name, "none")
        if type(value) is int and value == 1:
            return Argument(name, "i32", "==1")
        if isinstance(value, tl.constexpr):
            return Argument(name, f"={CONSTEXPR}{_one_word(value.value, where)}")
        return Argument(name, f"={_one_word(value, where)}")
    divisible = path in attributes and bool(attributes[path])
    return Argument(name, kind, argument_class(kind, divisible))


def _one_word(value: Any, where: str) -> str:
    text = spelled(value, where)
    text = text if isinstance(text, str) and text.startswith(_PREFIXES) else json.dumps(text)
    if set(text) & set(" ,()/"):
        raise BuildError(
            "a constant of this kind is not supported as an argument",
            where=where,
            found=text,
            wanted="a number, a dtype, or a Triton function",
        )
    return text


def argument_class(kind: str, divisible: bool) -> str:
    """The class of a runtime value of a type, by whether it is a multiple of 16."""
    if kind.startswith("*"):
        return "aligned" if divisible else "unaligned"
    if kind[0] in "iu" and kind not in ("u1", "i1"):
        return "%16" if divisible else "other"
    return ""


def specialised(parameter: Any, argument: Argument) -> tuple[Any, Any, Any]:
    """The type, the class and a value of an argument, as the binder of a kernel gives them."""
    if argument.is_tuple:
        found = [specialised(parameter, element) for element in argument.elements]
        kinds, classes, values = zip(*found, strict=True) if found else ((), (), ())
        return tuple(kinds), tuple(classes), tuple(values)
    if argument.type.startswith("="):
        return _constant_argument(argument.type[1:])
    if argument.type == "none":
        return "constexpr", None, None
    if argument.specialisation == "==1":
        if parameter.annotation_type:
            return str(parameter.annotation_type), 1, 1
        return "constexpr", 1, 1
    if not argument.specialisation or parameter.do_not_specialize:
        return argument.type, None, None
    return argument.type, "D" if argument.specialisation in ("aligned", "%16") else "", None


def _constant_argument(text: str) -> tuple[str, Any, Any]:
    inside = text.startswith(CONSTEXPR)
    text = text.removeprefix(CONSTEXPR)
    value = decoded(text if text.startswith(_PREFIXES) else json.loads(text))
    if inside:
        value = tl.constexpr(value)
    # The class of a function is its hash (`native_specialize_impl`: 3.6.0 to 3.9.0).
    return "constexpr", value.cache_key if isinstance(value, JITCallable) else value, value
