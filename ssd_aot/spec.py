"""The spec: what to build, from one or several YAML files, shipped ones among them."""

from __future__ import annotations

import difflib
import hashlib
import importlib.resources
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ssd_aot.errors import SpecError
from ssd_aot.geometry import ModelGeometry
from ssd_aot.launches import Constant, canonical_json
from ssd_aot.matrix import Section
from ssd_aot.recording.reading import recording_from_json
from ssd_aot.recording.recorded import Recording, merged
from ssd_aot.signatures import expand, notices
from ssd_aot.spec_reading import SOURCES, SpecFile, read_spec_file

__all__ = [
    "SOURCES", "ModelGeometry", "Section", "Spec", "load_spec", "resolve_spec", "shipped_spec",
    "shipped_specs",
]  # fmt: skip

Pin = tuple[str, tuple[tuple[str, Constant], ...]]


@dataclass(frozen=True)
class Spec:
    """What to build: where kernels come from, for which GPUs, and one section a file.

    Built in one order whatever order it was written in, so equal specs have equal digests. `pin`
    fixes options of a kernel's configuration; the build checks it against the candidates. Source
    `recording` has a recording in the place of sections.
    """

    sections: tuple[Section, ...]
    source: str = "builtin"
    targets: tuple[str, ...] = ()
    pin: tuple[Pin, ...] = ()
    version: int = 1
    recording: Recording | None = None

    def __post_init__(self) -> None:
        unique = {canonical_json(section.to_json()): section for section in self.sections}
        object.__setattr__(self, "sections", tuple(unique[key] for key in sorted(unique)))
        object.__setattr__(self, "targets", tuple(sorted(set(self.targets))))
        pins = sorted((kernel, tuple(sorted(options))) for kernel, options in self.pin)
        object.__setattr__(self, "pin", tuple(pins))

    @property
    def models(self) -> tuple[ModelGeometry, ...]:
        """The models of all sections, by name."""
        found = [model for section in self.sections for model in section.models]
        return tuple(sorted(dict.fromkeys(found), key=lambda model: (model.name, model.tp)))

    @cached_property
    def notices(self) -> tuple[str, ...]:
        """What expansion changed of what was asked."""
        return notices(self)

    @cached_property
    def digest(self) -> str:
        """sha256 over the canonical JSON of the normalised form."""
        return hashlib.sha256(canonical_json(self.normalised()).encode()).hexdigest()

    def pinned(self, kernel: str) -> dict[str, Constant]:
        """The options that are fixed for a kernel; empty where none are."""
        return dict(dict(self.pin).get(kernel, ()))

    def place(self, field: str) -> str:
        """`file:line: field` of the first section that wrote it, or the field alone."""
        wrote = (section for section in self.sections if field in section.places)
        section = next(wrote, None)
        return section.place(field) if section else field

    def normalised(self) -> dict[str, Any]:
        """Plain JSON values with every default filled in."""
        form: dict[str, Any] = {
            "version": self.version,
            "source": self.source,
            "targets": list(self.targets),
            "sections": [section.to_json() for section in self.sections],
            "pin": {kernel: dict(options) for kernel, options in self.pin},
        }
        if self.recording is not None:
            form["recording"] = self.recording.to_json()
        return form

    @classmethod
    def from_normalised(cls, data: Mapping[str, Any]) -> Spec:
        """The inverse of `normalised`. Raises SpecError for anything else."""
        try:
            return cls(
                version=data["version"],
                source=data["source"],
                targets=tuple(data["targets"]),
                sections=tuple(Section.from_json(entry) for entry in data["sections"]),
                pin=tuple((kernel, tuple(o.items())) for kernel, o in data["pin"].items()),
                recording=(
                    recording_from_json(data["recording"], "spec") if "recording" in data else None
                ),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise SpecError(
                "not a normalised spec", found=f"{type(error).__name__}: {error}"
            ) from error


def load_spec(paths: Sequence[Path]) -> Spec:
    """One spec of one or several files: models united, each file's with that file's own axes.

    Raises SpecError with file, line and field for anything that cannot be built as written, and
    with both places where two files disagree.
    """
    if not paths:
        raise SpecError("no spec file given", mend="give a file, or one of the shipped names")
    files = [read_spec_file(Path(path)) for path in paths]
    _check_models(files)
    recordings = [(f.recording, f.section.place("recording")) for f in files if f.recording]
    spec = Spec(
        sections=tuple(entry.section for entry in files if entry.recording is None),
        source=_source(files),
        targets=tuple(name for entry in files for name in entry.targets),
        pin=_pins(files),
        recording=merged(recordings) if recordings else None,
    )
    expand(spec)
    return spec


def _check_models(files: Sequence[SpecFile]) -> None:
    """One name is one geometry; tensor-parallel and chunk sizes may differ and are united."""
    known: dict[str, tuple[ModelGeometry, str]] = {}
    for entry in files:
        for model in entry.section.models:
            place = entry.section.place(f"models.{model.name}")
            first, first_place = known.setdefault(model.name, (model, place))
            differ = [name for name, value in model.shape.items() if first.shape[name] != value]
            if differ:
                raise SpecError(
                    f"model {model.name} has two geometries",
                    where=place,
                    found=", ".join(f"{name} {model.shape[name]}" for name in differ),
                    wanted=", ".join(f"{name} {first.shape[name]}" for name in differ)
                    + f", as in {first_place}",
                    mend="give one of them another name",
                )


def _source(files: Sequence[SpecFile]) -> str:
    recorded = [entry for entry in files if entry.recording is not None]
    if recorded and len(recorded) < len(files):
        other = next(entry for entry in files if entry.recording is None)
        raise SpecError(
            "a recording and a spec of models in one build",
            where=other.section.place(""),
            found="models",
            wanted=f"a recording, as in {recorded[0].section.place('recording')}",
            mend="build them apart: a program can load both bundles",
        )
    stated = [(entry.source, entry.section.place("source")) for entry in files if entry.source]
    for source, place in stated:
        if source != stated[0][0]:
            raise SpecError(
                "two sources in one build",
                where=place,
                found=source,
                wanted=f"{stated[0][0]}, as in {stated[0][1]}",
                mend="build them apart, or override both with --source",
            )
    return stated[0][0] if stated else "builtin"


def _pins(files: Sequence[SpecFile]) -> tuple[Pin, ...]:
    pins: dict[str, dict[str, Constant]] = {}
    places: dict[tuple[str, str], str] = {}
    for entry in files:
        for (kernel, option), value in entry.pins.items():
            place = entry.section.place(f"pin.{kernel}.{option}")
            first = pins.setdefault(kernel, {}).setdefault(option, value)
            if first != value:
                raise SpecError(
                    f"{kernel} is pinned twice",
                    where=place,
                    found=f"{option} {value}",
                    wanted=f"{option} {first}, as in {places[kernel, option]}",
                    mend="remove one of the two",
                )
            places.setdefault((kernel, option), place)
    return tuple((kernel, tuple(options.items())) for kernel, options in pins.items())


def shipped_specs() -> tuple[str, ...]:
    """The names of the specs that come with this package."""
    return tuple(sorted(path.stem for path in _shipped_folder().glob("*.yaml")))


def shipped_spec(name: str) -> Path:
    """The file of a shipped spec. Raises SpecError with the nearest names."""
    if name in shipped_specs():
        return _shipped_folder() / f"{name}.yaml"
    near = difflib.get_close_matches(name.lower(), shipped_specs(), n=3, cutoff=0.5)
    raise SpecError(
        "no such spec file, and no shipped spec of this name",
        where="--spec",
        found=name,
        wanted=f"a file, or one of {', '.join(shipped_specs())}",
        mend=f"write {' or '.join(near)}" if near else "",
    )


def resolve_spec(text: str) -> Path:
    """What `--spec` names: a shipped spec, or else a file. Raises SpecError where it is neither."""
    if text in shipped_specs():
        return shipped_spec(text)
    return Path(text) if Path(text).is_file() else shipped_spec(text)


def _shipped_folder() -> Path:
    """`ssd_aot/specs` of an installation; a checkout without symbolic links has it beside."""
    package = Path(str(importlib.resources.files("ssd_aot")))
    folder = package / "specs"
    return folder if folder.is_dir() else package.parent / "specs"
