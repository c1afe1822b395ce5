"""What a bundle covers: models by tensor-parallel size, and in each block every way to call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ssd_aot.axes import AXES as AXIS_ORDER
from ssd_aot.bundle.manifest import Manifest
from ssd_aot.report.vocabulary import AXES, STATUSES, axis_words, natural, plural, status_kind

Values = Mapping[str, Any]
Combination = tuple[str, ...]


@dataclass(frozen=True)
class Cell:
    """A signature and what its launches are founded on: how many of each kind there are."""

    signature: str
    launches: Counter[str]

    @property
    def kind(self) -> str:
        """That of its least founded launch."""
        return max(self.launches, key=list(STATUSES).index)

    def share(self, kind: str) -> float:
        return self.launches[kind] / self.launches.total()


@dataclass(frozen=True)
class ModelRow:
    """A model of one geometry: `blocks` by tensor-parallel size, each a grid of cells, in which
    None is a combination that the spec leaves out."""

    model: str
    geometry: str
    blocks: Mapping[int, tuple[tuple[Cell | None, ...], ...]]

    @property
    def signatures(self) -> int:
        return sum(self.kinds.values())

    @property
    def kinds(self) -> Counter[str]:
        cells = (cell for block in self.blocks.values() for line in block for cell in line)
        return Counter(cell.kind for cell in cells if cell)


@dataclass(frozen=True)
class Coverage:
    """Every signature on one target. `lines` and `columns` name the places in a block, by one text
    for each axis that varies; `shared` says what all signatures have in common."""

    target: str
    tp_sizes: tuple[int, ...]
    lines: tuple[Combination, ...]
    columns: tuple[Combination, ...]
    rows: tuple[ModelRow, ...]
    shared: tuple[str, ...]

    @property
    def kinds(self) -> Counter[str]:
        """How many signatures there are of each kind, the best founded first."""
        return sum((row.kinds for row in self.rows), Counter[str]())


def cover(manifest: Manifest, target: str, lacking: Iterable[str]) -> Coverage:
    """The coverage of one target; `lacking` names a signature once for each launch that it needs
    and the bundle lacks. Signatures that no launch names are missing too."""
    signatures = dict(manifest.signatures)
    launches = _launches(manifest, target, lacking)
    varying = _varying(list(signatures.values()))
    line_axes, column_axes = _split(varying, list(signatures.values()))
    lines = _combinations(signatures.values(), line_axes)
    columns = _combinations(signatures.values(), column_axes)
    tp_sizes = sorted({int(s.get("tp", 1)) for s in signatures.values()})
    grouped: dict[tuple[Any, ...], dict[int, dict[tuple[Combination, Combination], Cell]]] = {}
    for name, values in sorted(signatures.items()):
        place = _words(values, line_axes), _words(values, column_axes)
        by_tp = grouped.setdefault(_row_key(values), {})
        by_tp.setdefault(int(values.get("tp", 1)), {})[place] = Cell(name, launches[name])
    rows = tuple(
        ModelRow(
            model=str(key[0]),
            geometry=_geometry(key),
            blocks={
                tp: tuple(tuple(cells.get((line, column)) for column in columns) for line in lines)
                for tp, cells in sorted(by_tp.items())
            },
        )
        for key, by_tp in sorted(grouped.items(), key=lambda item: natural(str(item[0])))
    )
    first = next(iter(signatures.values()), {})
    shared = tuple(axis_words(a, first[a]) for a in _telling_axes(first) if a not in varying)
    return Coverage(target, tuple(tp_sizes), lines, columns, rows, shared)


def _launches(manifest: Manifest, target: str, lacking: Iterable[str]) -> dict[str, Counter[str]]:
    """How many launches of each kind every signature needs on a target."""
    found: dict[str, Counter[str]] = {name: Counter() for name, _ in manifest.signatures}
    for variant in manifest.variants:
        for name in variant.signatures if variant.target == target else ():
            found[name][status_kind(variant.tuning.status)] += 1
    for name in (*lacking, *(name for name, kinds in found.items() if not kinds)):
        found[name]["missing"] += 1
    return found


def _telling_axes(values: Values) -> list[str]:
    """Axes worth a word: of types that follow the inputs', only those that do not."""
    skipped = {"max_num_batched_tokens"}
    skipped |= {a for a in ("dt_dtype", "param_dtype") if values.get(a) == values.get("dtype")}
    return [axis for axis in AXES if axis in values and axis not in skipped]


def _varying(signatures: Sequence[Values]) -> list[str]:
    """Axes that have several values, without those that only follow `dtype`."""
    follow = {
        axis
        for axis in ("dt_dtype", "param_dtype")
        if all(s.get(axis) == s.get("dtype") for s in signatures)
    }
    return [
        axis
        for axis in AXES
        if axis not in follow and len({repr(s.get(axis)) for s in signatures}) > 1
    ]


def _split(varying: list[str], signatures: Sequence[Values]) -> tuple[list[str], list[str]]:
    """Which axes run down a block and which across, for blocks about twice as wide as high."""

    def extent(cut: int) -> int:
        down = len(_combinations(signatures, varying[:cut]))
        across = len(_combinations(signatures, varying[cut:]))
        return max(2 * down, across)

    cut = min(range(len(varying) + 1), key=extent)
    return varying[:cut], varying[cut:]


def _combinations(signatures: Iterable[Values], axes: Sequence[str]) -> tuple[Combination, ...]:
    """What occurs of some axes together, in words, in the order of the axes' values."""
    ranks = {_words(s, axes): tuple(_rank(axis, s.get(axis)) for axis in axes) for s in signatures}
    return tuple(sorted(ranks, key=lambda words: ranks[words]))


def _words(values: Values, axes: Sequence[str]) -> Combination:
    return tuple(axis_words(axis, values.get(axis)) for axis in axes)


def _rank(axis: str, value: Any) -> tuple[int, tuple[int, ...], str]:
    """Orders the values of an axis as `axes` does, other values by size or text."""
    allowed = AXIS_ORDER[axis].allowed if axis in AXIS_ORDER else ()
    if value in allowed:
        return allowed.index(value), (), ""
    numbers = value if isinstance(value, list) else [value] if isinstance(value, int) else []
    return len(allowed), tuple(numbers), "" if numbers else str(value)


def _row_key(values: Values) -> tuple[Any, ...]:
    heads = int(values.get("nheads", 0)) * int(values.get("tp", 1))
    sizes = (values.get(name) for name in ("headdim", "dstate", "chunk_size"))
    return str(values.get("model", "")), heads, *sizes


def _geometry(key: Sequence[Any]) -> str:
    _, heads, headdim, dstate, chunk = key
    return f"{plural(heads, 'head')} × {headdim}, state {dstate}, chunk {chunk}"
