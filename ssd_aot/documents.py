"""YAML documents with the file and line of everything in them, for errors that say where."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import yaml

from ssd_aot.errors import SpecError
from ssd_aot.launches import Constant

DEEPEST = 64
"""Levels that a message speaks of where nesting has ended the recursion of the YAML parser."""

_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
# The words YAML 1.1 also reads as booleans, and YAML 1.2 as text.
_BOOLEAN_WORDS = ("yes", "no", "on", "off", "true", "false")


def read_document(path: Path) -> Item:
    """The document of a YAML file. Raises SpecError for what cannot be read or is no mapping."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except OSError as error:
        raise SpecError("the spec cannot be read", str(path), str(error.strerror)) from error
    except UnicodeDecodeError as error:
        raise SpecError(
            "the spec is not UTF-8", str(path), str(error), mend="save it as UTF-8"
        ) from error
    except yaml.YAMLError as error:
        raise _syntax_error(error, path) from error
    except RecursionError:
        # Without its cause, which is some thousand lines long.
        raise SpecError(
            "the spec is nested too deeply",
            f"{path}:{_line_of_depth(text)}",
            found=f"more than {DEEPEST} levels of lists and mappings",
            wanted="the few levels that a spec has",
            mend="look for brackets that are not closed",
        ) from None
    if node is None:
        raise SpecError(
            "the spec is empty",
            f"{path}:1",
            wanted="a mapping with version and models",
            mend="begin with 'version: 1'",
        )
    return Item(node, str(path), "")


def _line_of_depth(text: str) -> int:
    """The line in which a YAML text is nested more than `DEEPEST` levels deep."""
    depth = 0
    # Events come without recursion, unlike nodes.
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST and event.start_mark is not None:
            return event.start_mark.line + 1
    return 1


def _syntax_error(error: yaml.YAMLError, path: Path) -> SpecError:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    tab = "\\t" in problem
    return SpecError(
        "not YAML",
        f"{path}:{mark.line + 1}" if mark else str(path),
        found=problem,
        mend="indent with spaces, not tabs" if tab else "",
    )


@dataclass(frozen=True)
class Item:
    """A node of a YAML file and the dotted field it is the value of (`matrix.dtype[1]`)."""

    node: yaml.Node
    file: str
    field: str

    @property
    def line_place(self) -> str:
        return f"{self.file}:{self.node.start_mark.line + 1}"

    @property
    def place(self) -> str:
        return f"{self.line_place}: {self.field}" if self.field else self.line_place

    @property
    def shown(self) -> str:
        """The value as it was written, or its kind where that is long."""
        if isinstance(self.node, yaml.ScalarNode):
            text = str(self.node.value)
            return f"'{text}'" if self.node.style in ("'", '"') else text or "nothing"
        return "a list" if isinstance(self.node, yaml.SequenceNode) else "a mapping"

    def error(self, what: str, wanted: str = "", mend: str = "", found: str = "") -> SpecError:
        return SpecError(what, self.place, found or self.shown, wanted, mend)

    def fields(self, known: Collection[str] | None = None) -> dict[str, Item]:
        """The fields of a mapping; with `known`, any other field is an error."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.error("not a mapping", wanted=_names(known) if known else "a mapping")
        found: dict[str, Item] = {}
        lines: dict[str, str] = {}
        for key, value in self.node.value:
            here = Item(key, self.file, self.field)
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                mend = f'write "{key.value}" in quotes' if _is_scalar(key) else ""
                if key.value == "<<":
                    mend = "write the merged fields out"
                raise here.error("a field's name is not text", wanted="text", mend=mend)
            name = str(key.value)
            item = Item(value, self.file, f"{self.field}.{name}" if self.field else name)
            if name in found:
                raise Item(key, self.file, item.field).error(
                    "given twice", found=f"again in {here.line_place}, first in {lines[name]}",
                    wanted="one value", mend="remove one of the two",
                )  # fmt: skip
            if known is not None and name not in known:
                raise here.error(f"unknown field '{name}'", _names(known), nearest(name, known))
            found[name] = item
            lines[name] = here.line_place
        return found

    def elements(self) -> list[Item]:
        """The elements of a list; one value stands for a list of it. An empty list is an error."""
        if isinstance(self.node, yaml.ScalarNode):
            return [self]
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.error("not a list", wanted="a list, or one value")
        if not self.node.value:
            raise self.error("an empty list", "at least one value", found="[]",
                             mend="remove the field to take its default")  # fmt: skip
        return [
            Item(node, self.file, f"{self.field}[{index}]")
            for index, node in enumerate(self.node.value)
        ]

    def integer(self, low: int = 1) -> int:
        """A whole number of at least `low`, in plain decimal digits."""
        text = self.scalar("a whole number")
        wanted = f"a whole number of at least {low}"
        plain = self.node.tag == "tag:yaml.org,2002:int" and _INTEGER.fullmatch(text)
        if not plain:
            raise self.error("not a whole number", wanted, _integer_mend(text))
        if int(text) < low:
            raise self.error(f"below {low}", wanted)
        return int(text)

    def boolean(self) -> bool:
        text = self.scalar("true or false")
        if self.node.tag == "tag:yaml.org,2002:bool" and text in ("true", "false"):
            return text == "true"
        lowered = text.lower()
        mend = ""
        if lowered in _BOOLEAN_WORDS:
            mend = f"write {'true' if lowered in ('yes', 'on', 'true') else 'false'}, unquoted"
        raise self.error("not a boolean", "true or false", mend)

    def text(self, allowed: Collection[str] = ()) -> str:
        """Text; with `allowed`, one of these."""
        value = self.scalar(_names(allowed) or "text")
        if allowed and value not in allowed:
            raise self.error("not an allowed value", _names(allowed), nearest(value, allowed))
        # A name such as 1.5 or no is a number or a boolean to YAML.
        if not allowed and self.node.tag != "tag:yaml.org,2002:str":
            raise self.error("not text", "text", f'write "{value}" in quotes')
        return value

    def constant(self) -> Constant:
        """A value of a pin: null, a boolean, a number or text, as YAML reads it."""
        self.scalar("one value")
        try:
            value = yaml.SafeLoader("").construct_object(self.node)
        except (yaml.YAMLError, ValueError):
            value = self.node
        # Neither infinity nor NaN has a JSON form.
        finite = not isinstance(value, float) or math.isfinite(value)
        if finite and (value is None or isinstance(value, (bool, int, float, str))):
            return value
        raise self.error("not a value for an option", "null, a boolean, a number or text")

    def scalar(self, wanted: str) -> str:
        """The text of one value, whatever YAML makes of it."""
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.error("not one value", wanted)
        return str(self.node.value)


def nearest(value: str, allowed: Iterable[str]) -> str:
    """`write X` for the nearest allowed spelling, or nothing."""
    by_lower = {name.lower(): name for name in allowed}
    near = difflib.get_close_matches(value.lower(), by_lower, n=1, cutoff=0.5)
    return f"write {by_lower[near[0]]}" if near else ""


def _names(allowed: Iterable[str] | None) -> str:
    return ", ".join(allowed or ())


def _is_scalar(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode)


def _integer_mend(text: str) -> str:
    """What a number in another notation comes to; YAML 1.1 reads 010 as eight and 1:30 as 90."""
    try:
        value = float(text.replace("_", ""))
    except ValueError:
        return ""
    # Beyond 2**53 a float is not the number that was written.
    return f"write {int(value)}" if value.is_integer() and abs(value) < 2**53 else ""
