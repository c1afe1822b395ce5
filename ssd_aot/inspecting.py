"""What is inside a bundle, for programs and for people."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

from ssd_aot.bundle.manifest import FORMAT, CodeObject, Manifest, VariantEntry
from ssd_aot.bundle.store import Bundle

WIDTH = 80
WIDEST_CELL = 14
"""In columns, but for the first of a table: five such cells still leave it room."""


def describe(bundle: Bundle) -> dict[str, Any]:
    """The bundle as plain JSON values, from its manifest alone; sizes in bytes."""
    manifest = bundle.manifest
    objects = {entry.object.sha256: entry.object for entry in manifest.variants}
    toolchain = vars(manifest.toolchain)
    return {
        "path": str(bundle.path),
        "digest": bundle.digest,
        "format": FORMAT,
        "complete": manifest.complete,
        "missing": list(manifest.missing),
        "spec_digest": manifest.spec_digest,
        "source": {**vars(manifest.source), "kernels": dict(manifest.source.kernels)},
        "launch_abi": manifest.launch_abi,
        "toolchain": {**toolchain, "environment": dict(manifest.toolchain.environment)},
        "targets": [{**vars(t), "capability": list(t.capability)} for t in manifest.targets],
        "signatures": len(manifest.signatures),
        "launches": len({entry.launch.identity for entry in manifest.variants}),
        "variants": len(manifest.variants),
        "objects": {
            "count": len(objects),
            "bytes": sum(code.size_bytes for code in objects.values()),
        },
        "files": {
            "count": len(manifest.files),
            "bytes": sum(size for _, _, size in manifest.files),
        },
        "tuning": _tuning(manifest.variants),
        "kernels": _kernels(manifest),
        "coverage": _coverage(manifest),
    }


def _tuning(variants: Iterable[VariantEntry]) -> dict[str, dict[str, int]]:
    """By status: how many variants, and how many of them no reference has checked."""
    counts = Counter(entry.tuning.status for entry in variants)
    unchecked = Counter(e.tuning.status for e in variants if not e.tuning.checked)
    return {
        status: {"variants": counts[status], "unchecked": unchecked[status]}
        for status in sorted(counts)
    }


def _kernels(manifest: Manifest) -> dict[str, dict[str, Any]]:
    groups: dict[str, list[CodeObject]] = {}
    for entry in manifest.variants:
        groups.setdefault(entry.launch.kernel, []).append(entry.object)
    return {
        kernel: {
            "variants": len(codes),
            "registers": _range(code.registers for code in codes),
            "shared_bytes": _range(code.shared_bytes for code in codes),
            "spill_bytes": _range(code.spill_bytes for code in codes),
            "spilling": sum(code.spill_bytes > 0 for code in codes),
        }
        for kernel, codes in sorted(groups.items())
    }


def _range(values: Iterable[int]) -> list[int]:
    found = sorted(values)
    return [found[0], found[-1]]


def _coverage(manifest: Manifest) -> dict[str, dict[str, Any]]:
    """By model: the covered values of each axis and how many signatures they make."""
    axes = ("tp", "dtype", "state_dtype", "chunk_size")
    models: dict[str, dict[str, Any]] = {}
    for _, signature in manifest.signatures:
        row = models.setdefault(
            str(signature.get("model", "")), {"signatures": 0, **{axis: set() for axis in axes}}
        )
        row["signatures"] += 1
        for axis in axes:
            if axis in signature:
                row[axis].add(signature[axis])
    return {
        model: {name: sorted(v) if isinstance(v, set) else v for name, v in row.items()}
        for model, row in sorted(models.items())
    }


def render(bundle: Bundle) -> str:
    """`describe` for a terminal, no line longer than 80 columns."""
    data = describe(bundle)
    source, toolchain = data["source"], data["toolchain"]
    fields = [
        ("bundle", data["path"]),
        ("digest", data["digest"]),
        (
            "state",
            "complete" if data["complete"] else f"INCOMPLETE, {len(data['missing'])} missing",
        ),
        ("format", str(data["format"])),
        ("spec", data["spec_digest"]),
        ("source", f"{source['name']} {source['version']}, {len(source['kernels'])} kernels"),
        ("built with", f"triton {toolchain['triton_version']}, {toolchain['ptxas_version']}"),
        ("built on", f"{toolchain['platform']}, {toolchain['python_abi']}"),
        ("targets", ", ".join(f"{t['name']} ({t['arch']})" for t in data["targets"])),
        ("signatures", str(data["signatures"])),
        ("variants", f"{data['variants']} of {data['launches']} launches"),
        ("objects", f"{data['objects']['count']}, {data['objects']['bytes']:,} bytes"),
        ("tuned", ", ".join(_status(name, n) for name, n in data["tuning"].items()) or "nothing"),
    ]
    lines = [line for name, value in fields for line in _field(name, value)]
    lines += [f"{'missing':<11}{line}" for name in data["missing"] for line in _cut(name, 69)]
    lines += ["", *_kernel_table(data["kernels"]), "", *_coverage_table(data["coverage"])]
    return "\n".join(lines)


def _status(name: str, counts: dict[str, int]) -> str:
    unchecked = f" ({counts['unchecked']} unchecked)" if counts["unchecked"] else ""
    return f"{counts['variants']} {name}{unchecked}"


def _field(name: str, value: str) -> list[str]:
    return textwrap.wrap(
        value,
        WIDTH,
        initial_indent=f"{name:<11}",
        subsequent_indent=" " * 11,
        break_on_hyphens=False,
    )


def _kernel_table(kernels: dict[str, dict[str, Any]]) -> list[str]:
    rows: list[tuple[str, ...]] = [
        ("kernel", "variants", "registers", "shared bytes", "spill bytes", "spilling")
    ]
    for name, row in kernels.items():
        ranges = [_spelled(row[key]) for key in ("registers", "shared_bytes", "spill_bytes")]
        rows.append((name, str(row["variants"]), *ranges, str(row["spilling"])))
    return _table(rows)


def _coverage_table(models: dict[str, dict[str, Any]]) -> list[str]:
    rows: list[tuple[str, ...]] = [("model", "tp", "dtype", "state", "chunk", "signatures")]
    for name, row in models.items():
        axes = [" ".join(map(str, row[a])) for a in ("tp", "dtype", "state_dtype", "chunk_size")]
        rows.append((name, *axes, str(row["signatures"])))
    return _table(rows)


def _spelled(bounds: list[int]) -> str:
    low, high = bounds
    return str(low) if low == high else f"{low}..{high}"


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns as wide as they need, long cells wrapped so that the whole fits the terminal."""
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    widths = [min(width, WIDEST_CELL) for width in others]
    widths.insert(0, min(first, WIDTH - sum(widths) - 2 * len(widths)))
    lines = []
    for row in rows:
        cells = [_cut(cell, width) for cell, width in zip(row, widths, strict=True)]
        for texts in zip_longest(*cells, fillvalue=""):
            padded = (f"{text:<{width}}" for text, width in zip(texts, widths, strict=True))
            lines.append("  ".join(padded).rstrip())
    return lines


def _cut(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]
