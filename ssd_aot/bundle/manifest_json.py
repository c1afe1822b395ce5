"""The manifest's JSON form, written canonically; `manifest_reading` is the way back.

Each launch stands once, in a table keyed by its identity, and variants name signatures by their
position in the list sorted by id: both repeat across targets, and ids are long. Arguments and
parameters are strings, `x *bf16 aligned` and `x *bf16`, being most of the text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ssd_aot.bundle.entries import FORMAT, ManifestParts, VariantEntry
from ssd_aot.errors import BundleError
from ssd_aot.launches import Constant, Launch, canonical_json

MEND = "build the bundle anew, or copy it again from where it was built"


def write_manifest(manifest: ManifestParts) -> str:
    """Canonical JSON on one line, `format` first, the other fields sorted, a newline at the end.

    Raises BundleError when the manifest contradicts itself, ValueError for a number JSON lacks.
    """
    check_references(manifest, "manifest")
    positions = {name: i for i, name in enumerate(sorted(dict(manifest.signatures)))}
    launches = {v.launch.identity: v.launch for v in manifest.variants}
    form = {
        "files": {path: [digest, size] for path, digest, size in manifest.files},
        "launch_abi": manifest.launch_abi,
        "launches": {identity: _launch_form(launch) for identity, launch in launches.items()},
        "missing": sorted(manifest.missing),
        "signatures": [list(item) for item in sorted(manifest.signatures, key=lambda s: s[0])],
        "source": {**vars(manifest.source), "kernels": dict(manifest.source.kernels)},
        "spec": manifest.spec,
        "spec_digest": manifest.spec_digest,
        "targets": [
            _plain(target) for target in sorted(manifest.targets, key=lambda target: target.name)
        ],
        "toolchain": {
            **vars(manifest.toolchain),
            "environment": dict(manifest.toolchain.environment),
        },
        "variants": sorted(
            (_variant_form(entry, positions) for entry in manifest.variants), key=_variant_order
        ),
    }
    if manifest.triton is not None:
        form["triton"] = manifest.triton.to_json()
    if manifest.needs is not None:
        form["needs"] = manifest.needs.to_json(positions)
    if manifest.texts:
        form["texts"] = {kernel: _plain(source) for kernel, source in manifest.texts}
    body = json.dumps(form, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f'{{"format":{FORMAT},{body[1:]}\n'


def _plain(value: Any) -> dict[str, Any]:
    # Not vars(): a cached property would be among them.
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def _variant_form(entry: VariantEntry, positions: Mapping[str, int]) -> dict[str, Any]:
    configuration = entry.configuration.to_json()
    parameters = [f"{name} {kind}" for name, kind in entry.object.parameters]
    tuning = _plain(entry.tuning)
    for name in ("median_us", "default_us"):
        # 12 and 12.0 are one number and must be one text.
        tuning[name] = None if tuning[name] is None else float(tuning[name])
    return {
        "target": entry.target,
        "launch": entry.launch.identity,
        "configuration": {name: _constant_form(value) for name, value in configuration.items()},
        "object": {**_plain(entry.object), "parameters": parameters},
        "tuning": tuning,
        "signatures": sorted(positions[name] for name in entry.signatures),
    }


def _variant_order(form: dict[str, Any]) -> tuple[str, str, str]:
    return form["target"], form["launch"], canonical_json(form["configuration"])


def _launch_form(launch: Launch) -> dict[str, Any]:
    return {
        "kernel": launch.kernel,
        "constexprs": [[name, _constant_form(value)] for name, value in launch.constexprs],
        "arguments": [f"{a.name} {a.spelled()}" for a in launch.arguments],
        "options": {name: _constant_form(value) for name, value in launch.options},
    }


def _constant_form(value: Constant) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    return value


def check_references(manifest: ManifestParts, where: str) -> None:
    """The parts of a manifest point at each other: what they name must be there, once."""
    files = {path: (digest, size) for path, digest, size in manifest.files}
    targets = {target.name for target in manifest.targets}
    signatures = dict(manifest.signatures).keys()

    def refuse(what: str, found: Iterable[str], wanted: str) -> None:
        raise BundleError(what, where, ", ".join(found), wanted, MEND)

    _check_once("file", [path for path, _, _ in manifest.files], refuse)
    _check_once("target", [target.name for target in manifest.targets], refuse)
    _check_once("signature", [name for name, _ in manifest.signatures], refuse)
    for entry in manifest.variants:
        if entry.target not in targets:
            refuse("a variant for an unknown target", [entry.target], ", ".join(sorted(targets)))
        if not signatures >= set(entry.signatures):
            unknown = sorted(set(entry.signatures) - signatures)
            refuse("a variant for unknown signatures", unknown, "ids of the manifest's signatures")
        code = entry.object
        if files.get(code.path) != (code.sha256, code.size_bytes):
            listed = files.get(code.path)
            found = [f"{listed[1]} bytes, sha256 {listed[0]}" if listed else "not listed"]
            wanted = f"{code.size_bytes} bytes, sha256 {code.sha256}"
            refuse(f"`files` disagrees with the variant of {code.path}", found, wanted)

    for need in manifest.needs.launches if manifest.needs else ():
        if not signatures >= set(need.signatures):
            unknown = sorted(set(need.signatures) - signatures)
            refuse("`needs` of unknown signatures", unknown, "ids of the manifest's signatures")
    for path, digest, size in manifest.triton.files() if manifest.triton else ():
        listed = files.get(path)
        if listed is None or listed[0] != digest or size not in (None, listed[1]):
            refuse("`files` disagrees with `triton`", [path], f"{path}, sha256 {digest}")


def _check_once(
    noun: str, names: list[str], refuse: Callable[[str, Iterable[str], str], None]
) -> None:
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        refuse(f"a {noun} is listed twice", twice, "each once")
