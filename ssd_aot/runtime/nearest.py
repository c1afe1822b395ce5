"""The entry of a bundle that is nearest to what was asked for, and all that tells the two apart."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from ssd_aot.bundle.manifest import Manifest, Toolchain, VariantEntry
from ssd_aot.bundle.store import Bundle
from ssd_aot.bundle.triton_files import CachedTuning
from ssd_aot.launches import Argument
from ssd_aot.runtime.asked import Asked

SHOWN = 3


@dataclass(frozen=True)
class Difference:
    """One component of a key: `component` is its kind (`constexpr`, `Triton`), `name` which one of
    the kind, `found` what was asked for and `held` what the nearest entry has."""

    component: str
    name: str
    found: str
    held: str

    def __str__(self) -> str:
        what = f"{self.component} {self.name}".strip()
        return f"{what} {self.found}, not {self.held}"


@dataclass(frozen=True)
class Nearest:
    """The nearest entry by name, empty where the bundle has nothing of the kernel."""

    entry: str
    differences: tuple[Difference, ...]

    def __str__(self) -> str:
        if not self.entry:
            return "nothing of this kernel"
        shown = "; ".join(str(found) for found in self.differences[:SHOWN])
        more = len(self.differences) - SHOWN
        apart = f", which differs: {shown}" if shown else ", which differs in nothing that is known"
        return f"{self.entry}{apart}" + (f"; and {more} more" if more > 0 else "")


def nearest(bundle: Bundle, asked: Asked) -> Nearest:
    """What the bundle has that differs least from what was asked for."""
    if asked.tuning_key is not None:
        return _nearest_tuning(bundle, asked)
    manifest = bundle.manifest
    found = [
        (entry, [*_launch(entry, asked), *_architecture(manifest, entry.target, asked)])
        for entry in manifest.variants
        if entry.launch.kernel == asked.kernel
    ]
    if not found:
        return Nearest("", ())
    entry, differences = min(found, key=lambda item: (len(item[1]), item[0].name))
    return Nearest(entry.name, (*_source(manifest, asked), *differences,
                                *_toolchain(manifest.toolchain, asked)))  # fmt: skip


def _nearest_tuning(bundle: Bundle, asked: Asked) -> Nearest:
    manifest = bundle.manifest
    results = manifest.triton.tunings if manifest.triton else ()
    found = [
        (tuning, [*differences, *_architecture(manifest, tuning.target, asked)])
        for tuning, differences in _tunings(bundle, results, asked)
    ]
    if not found:
        return Nearest("", ())
    tuning, differences = min(found, key=lambda item: (_apart(item[1]), item[0].key))
    return Nearest(
        f"tuning of {tuning.kernel} for {tuning.target} [{tuning.key[:12]}]",
        (*_source(manifest, asked), *differences, *_toolchain(manifest.toolchain, asked)),
    )


def _apart(differences: Iterable[Difference]) -> int:
    """A result of another key is further away than one of another list of candidates, the more so
    the more of the key differs."""
    total = 0
    for found in differences:
        total += 1
        if found.component == "tuning key":
            wanted, held = json.loads(found.found), json.loads(found.held)
            total += sum(a != b for a, b in zip_longest(wanted, held))
    return total


def _tunings(
    bundle: Bundle, results: Iterable[CachedTuning], asked: Asked
) -> Iterator[tuple[CachedTuning, list[Difference]]]:
    for tuning in results:
        if tuning.kernel == asked.kernel:
            try:
                stored = json.loads((bundle.path / tuning.path).read_text())
                yield tuning, _tuning_differences(stored, asked)
            except (OSError, ValueError, KeyError):
                continue


def _tuning_differences(stored: dict[str, Any], asked: Asked) -> list[Difference]:
    held, wanted = [_plain(stored["key"]), _plain(asked.tuning_key)]
    if held != wanted:
        return [Difference("tuning key", "", json.dumps(wanted), json.dumps(held))]
    had = [json.dumps(config, sort_keys=True) for config in stored.get("candidates", ())]
    if had and had != list(asked.candidates):
        more = [config for config in asked.candidates if config not in had]
        less = [config for config in had if config not in asked.candidates]
        apart = [f"with {_readable(config)}" for config in more]
        apart += [f"without {_readable(config)}" for config in less]
        found = ", ".join(apart) or "in another order"
        return [Difference("candidates", "", f"{len(asked.candidates)}, {found}", str(len(had)))]
    return []


def _readable(config: str) -> str:
    """A candidate as people write it, of Triton's JSON."""
    values = json.loads(config)
    values = {**values.pop("kwargs", {}), **values}
    return " ".join(f"{name}={value}" for name, value in values.items() if value is not None)


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def _launch(entry: VariantEntry, asked: Asked) -> Iterator[Difference]:
    if asked.launch is None or asked.configuration is None:
        return
    held = dict(entry.launch.constexprs) | dict(entry.configuration.constexprs)
    wanted = dict(asked.launch.constexprs)
    yield from _values("constexpr", wanted, held)
    arguments = {argument.name: argument for argument in entry.launch.arguments}
    for argument in asked.launch.arguments:
        yield from _argument(argument, arguments.get(argument.name))
    own = ("num_warps", "num_stages", "maxnreg")
    held = dict(entry.launch.options) | {n: getattr(entry.configuration, n) for n in own}
    wanted = dict(asked.launch.options) | {n: getattr(asked.configuration, n) for n in own}
    yield from _values("option", wanted, held)


def _values(component: str, wanted: dict[str, Any], held: dict[str, Any]) -> Iterator[Difference]:
    for name in dict.fromkeys((*wanted, *held)):
        found, have = wanted.get(name, "unset"), held.get(name, "unset")
        if (type(found), found) != (type(have), have):
            yield Difference(component, name, str(found), str(have))


def _argument(wanted: Argument, held: Argument | None) -> Iterator[Difference]:
    if wanted == held:
        return
    have = held.spelled() if held else "no such argument"
    alike = held is not None and held.type == wanted.type
    component = "argument class" if alike else "argument type"
    yield Difference(component, wanted.name, wanted.spelled(), have)


def _architecture(manifest: Manifest, target: str, asked: Asked) -> Iterator[Difference]:
    (entry,) = (one for one in manifest.targets if one.name == target)
    number = entry.compute_capability
    if asked.arch and asked.arch != number:
        yield Difference("architecture", "", f"sm_{asked.arch}", f"sm_{number} ({target})")


def _source(manifest: Manifest, asked: Asked) -> Iterator[Difference]:
    held = dict(manifest.source.kernels).get(asked.kernel, "")
    if not held or not asked.source_sha256 or held == asked.source_sha256:
        return
    known, found = dict(manifest.texts).get(asked.kernel), asked.source
    if known is not None and found is not None:
        if known.sha256 != found.sha256:
            yield Difference("source text", "", found.sha256[:12], known.sha256[:12])
        if known.line != found.line:
            yield Difference("source line", "", str(found.line), str(known.line))
        if known != found:
            return
    yield Difference("source of what it calls, or a constant", "", asked.source_sha256[:12],
                     held[:12])  # fmt: skip


def _toolchain(held: Toolchain, asked: Asked) -> Iterator[Difference]:
    found = asked.toolchain
    if found is None:
        return
    if found.triton_content != held.triton_content:
        yield Difference("Triton", "", f"{found.triton_version} ({found.triton_content[:12]})",
                         f"{held.triton_version} ({held.triton_content[:12]})")  # fmt: skip
    for component, field in (
        ("ptxas", "ptxas_version"), ("Python", "python_abi"), ("platform", "platform")
    ):  # fmt: skip
        if getattr(found, field) != getattr(held, field):
            yield Difference(component, "", getattr(found, field), getattr(held, field))
    yield from _values("environment variable", dict(found.environment), dict(held.environment))
