"""What is inside a bundle, for programs and for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from ssd_aot.bundle.manifest import FORMAT, CodeObject, Manifest, VariantEntry
from ssd_aot.bundle.store import Bundle
from ssd_aot.tables import cut, field, table
from ssd_aot.verification.coverage import coverage
from ssd_aot.verification.coverage_table import coverage_lines


def describe(bundle: Bundle) -> dict[str, Any]:
    """The bundle as plain JSON values, from its manifest alone; sizes in bytes."""
    return {**_facts(bundle), "coverage": coverage(bundle.manifest).to_json()}


def _facts(bundle: Bundle) -> dict[str, Any]:
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


def render(bundle: Bundle) -> str:
    """`describe` for a terminal, no line longer than 80 columns."""
    data = _facts(bundle)
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
    lines = [line for name, value in fields for line in field(name, value)]
    lines += [f"{'missing':<11}{line}" for name in data["missing"] for line in cut(name, 69)]
    lines += ["", *_kernel_table(data["kernels"]), "", *coverage_lines(coverage(bundle.manifest))]
    return "\n".join(lines)


def _status(name: str, counts: dict[str, int]) -> str:
    unchecked = f" ({counts['unchecked']} unchecked)" if counts["unchecked"] else ""
    return f"{counts['variants']} {name}{unchecked}"


def _kernel_table(kernels: dict[str, dict[str, Any]]) -> list[str]:
    rows: list[tuple[str, ...]] = [
        ("kernel", "variants", "registers", "shared bytes", "spill bytes", "spilling")
    ]
    for name, row in kernels.items():
        ranges = [_spelled(row[key]) for key in ("registers", "shared_bytes", "spill_bytes")]
        rows.append((name, str(row["variants"]), *ranges, str(row["spilling"])))
    return table(rows)


def _spelled(bounds: list[int]) -> str:
    low, high = bounds
    return str(low) if low == high else f"{low}..{high}"
