"""`Coverage` for a terminal: a row for the models and sizes that agree, a column an axis."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from ssd_aot.axes import AXES
from ssd_aot.tables import WIDTH, fits, table
from ssd_aot.verification.coverage import Coverage, SignatureCoverage

SHOWN_GAPS = 20
"""How many uncovered signatures a terminal shows; the JSON form has them all."""

# Field of a signature, heading, and the axis whose default goes without saying (none: always said).
COLUMNS = (
    ("dtype", "dtype", ""),
    ("dt_dtype", "dt", "dtype"),
    ("param_dtype", "params", "dtype"),
    ("state_dtype", "state", ""),
    ("chunk_size", "chunk", ""),
    ("has_initstates", "init", ""),
    ("num_seqs", "seqs", ""),
    ("is_cont_batched", "packed", "IS_CONT_BATCHED"),
    ("D", "D", "D"),
    ("z", "z", "z"),
    ("dt_bias", "dt_bias", "dt_bias"),
    ("dt_softplus", "softplus", "dt_softplus"),
    ("seq_idx", "seq_idx", "seq_idx"),
    ("intermediate_states", "chunk states", "intermediate_states"),
    ("layout", "layout", "layout"),
    ("lengths", "lengths", "lengths"),
)

_Values = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class _Row:
    """Tensor-parallel sizes of a model that agree in everything; `values` by field, `covered` of
    `signatures` at each size, None where some are neither covered nor not."""

    model: str
    sizes: tuple[int, ...]
    values: _Values
    covered: int | None
    signatures: int
    tuned: str

    def cells(self, fields: Sequence[str]) -> tuple[str, ...]:
        count = "?" if self.covered is None else str(self.covered * len(self.sizes))
        return (
            self.model,
            " ".join(map(str, self.sizes)),
            *(" ".join(self.values[name]) for name in fields),
            f"{count}/{self.signatures * len(self.sizes)}",
        )


def coverage_lines(coverage: Coverage) -> list[str]:
    """Targets that agree share a table; axes that do not vary between rows stand above it."""
    lines: list[str] = []
    tables: dict[str, list[str]] = {}
    for target, cells in groupby(coverage.cells, lambda cell: cell.target):
        tables.setdefault("\n".join(_table(list(cells))), []).append(target)
    for text, targets in tables.items():
        lines += ["", f"coverage on {', '.join(targets)}", *text.split("\n")]
    gaps = coverage.gaps
    for target, cells in groupby(gaps[:SHOWN_GAPS], lambda cell: cell.target):
        lines.append(f"not covered on {target}, with the launches that are there:")
        for cell in cells:
            of = "" if cell.needed is None else f" {cell.held}/{cell.needed}"
            lines += _wrapped(f"  {cell.signature}{of}")
    if len(gaps) > SHOWN_GAPS:
        lines += _wrapped(f"{len(gaps) - SHOWN_GAPS} more are not covered, all shown with --json")
    lines += _wrapped(_outside(coverage))
    return lines[1:] if lines and not lines[0] else lines


def _outside(coverage: Coverage) -> str:
    head = "kernels of the models' path outside the bundle: "
    if coverage.outside is None:
        return head + "unknown, as no recording says which the program runs"
    return head + (", ".join(coverage.outside) or "none of those recorded")


def _table(cells: Sequence[SignatureCoverage]) -> list[str]:
    rows = _rows(cells)
    vary = [(name, head) for name, head, _ in COLUMNS if len({r.values[name] for r in rows}) > 1]
    differ = len({row.tuned for row in rows}) > 1
    count = next(
        n for n in range(len(vary), -1, -1) if n == 0 or fits(_cells(rows, vary[:n], differ))
    )
    said = _wrapped(f"all: {', '.join(_shared(rows))}")
    if not differ:
        said += _wrapped(f"tuned: {rows[0].tuned}")
    if vary[count:]:
        said += _wrapped(f"also vary: {', '.join(head for _, head in vary[count:])}")
    return [*said, *table(_cells(rows, vary[:count], differ))]


def _cells(
    rows: Sequence[_Row], shown: Sequence[tuple[str, str]], tuned: bool
) -> list[tuple[str, ...]]:
    head = ("model", "tp", *(head for _, head in shown), "covered", *["tuned"] * tuned)
    fields = [name for name, _ in shown]
    return [head, *(row.cells(fields) + (row.tuned,) * tuned for row in rows)]


def _shared(rows: Sequence[_Row]) -> list[str]:
    """What all rows have in common, but for axes at their default."""
    said = []
    for name, head, axis in COLUMNS:
        values = {row.values[name] for row in rows}
        if len(values) != 1:
            continue
        (only,) = values
        usual = rows[0].values["dtype"] if axis == "dtype" else tuple(map(_word, _default(axis)))
        if only and not (axis and only == usual):
            said.append(f"{head} {' '.join(only)}")
    return said


def _default(axis: str) -> tuple[Any, ...]:
    return AXES[axis].default if axis in AXES else ()


def _rows(cells: Sequence[SignatureCoverage]) -> list[_Row]:
    by_size: dict[tuple[str, int], list[SignatureCoverage]] = {}
    for cell in cells:
        place = str(cell.fields.get("model", "")), int(cell.fields.get("tp", 1))
        by_size.setdefault(place, []).append(cell)
    rows: list[_Row] = []
    for (model, tp), own in sorted(by_size.items()):
        row = _row(model, tp, own)
        alike = next((r for r in rows if replace(r, sizes=row.sizes) == row), None)
        if alike is None:
            rows.append(row)
        else:
            rows[rows.index(alike)] = replace(alike, sizes=(*alike.sizes, tp))
    return rows


def _row(model: str, tp: int, cells: Sequence[SignatureCoverage]) -> _Row:
    """One size of a model; `tuned` names every status that some variant has."""
    statuses = {status for cell in cells for status, _ in cell.statuses}
    unchecked = any(cell.unchecked for cell in cells)
    unknown = any(cell.covered is None for cell in cells)
    return _Row(
        model=model,
        sizes=(tp,),
        values={name: _values(cells, name) for name, _, _ in COLUMNS},
        covered=None if unknown else sum(cell.covered is True for cell in cells),
        signatures=len(cells),
        tuned=", ".join(sorted(statuses) + ["unchecked"] * unchecked) or "nothing",
    )


def _values(cells: Sequence[SignatureCoverage], name: str) -> tuple[str, ...]:
    found = {_sortable(cell.fields[name]) for cell in cells if name in cell.fields}
    return tuple(_word(value) for value in sorted(found))


def _sortable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        low, high = value
        return str(low) if low == high else f"{low}..{high}"
    return str(value)


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
