"""One spec file to what it says: its section of the matrix, its source, targets and pins."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ssd_aot.axes import AXES, NUM_SEQS_FORMS, AxisValue, num_seqs_bounds, parse_num_seqs
from ssd_aot.documents import Item, nearest, read_document
from ssd_aot.errors import SpecError
from ssd_aot.geometry import LIMITS, ModelGeometry, check_chunk_size
from ssd_aot.launches import Constant
from ssd_aot.matrix import Exclusion, Section
from ssd_aot.recording.reading import recording_of
from ssd_aot.recording.recorded import Recording
from ssd_aot.targets import target

SOURCES = ("builtin", "vllm", "sglang", "mamba_ssm", "tensorrt_llm", "recording")

_TOP = ("version", "source", "targets", "models", "matrix", "exclude", "pin", "max_num_seqs",
        "max_num_batched_tokens", "recording")  # fmt: skip
_OF_A_RECORDING = ("version", "source", "targets", "pin", "recording")
_MODEL = (*LIMITS, "tp", "chunk_size")
_REQUIRED = ("nheads", "headdim", "dstate", "ngroups")

_Axes = dict[str, tuple[AxisValue, ...]]

Pins = Mapping[tuple[str, str], Constant]


@dataclass(frozen=True)
class SpecFile:
    """What one file says; `source` is None where it does not, `pins` go by kernel and option. One
    with a `recording` has a section without models."""

    section: Section
    source: str | None
    targets: tuple[str, ...]
    pins: Pins
    recording: Recording | None = None


def read_spec_file(path: Path) -> SpecFile:
    """Reads and checks one spec file. Raises SpecError with file, line and field."""
    document = read_document(path)
    top = document.fields(_TOP)
    if "recording" in top:
        return _recorded(document, top)
    for name in ("version", "models"):
        if name not in top:
            raise _missing(document, name, top, ("version", "models"))
    _check_version(top["version"])
    if "source" in top and top["source"].shown == "recording":
        raise _missing(document, "recording", top, _OF_A_RECORDING)
    places = {"": document.line_place, **{name: item.line_place for name, item in top.items()}}
    limits = {
        name: top[name].integer()
        for name in ("max_num_seqs", "max_num_batched_tokens")
        if name in top
    }
    axes = _axes(top.get("matrix"), limits.get("max_num_seqs", Section.max_num_seqs), places)
    models = _models(top["models"], axes.pop("chunk_size", AXES["chunk_size"].default), places)
    section = Section(
        models=models,
        axes=tuple(axes.items()),
        exclude=_exclusions(top.get("exclude"), models),
        places=places,
        **limits,
    )
    return SpecFile(
        section=section,
        source=top["source"].text(SOURCES) if "source" in top else None,
        targets=_targets(top.get("targets")),
        pins=_pins(top.get("pin"), places),
    )


def _recorded(document: Item, top: Mapping[str, Item]) -> SpecFile:
    """A file that `ssd-aot record` wrote, with pins and targets that somebody may have added."""
    for name in ("version", "source"):
        if name not in top:
            raise _missing(document, name, top, ("version", "source", "recording"))
    _check_version(top["version"])
    for name, item in top.items():
        if name not in _OF_A_RECORDING:
            raise item.error("a recording has no such field", ", ".join(_OF_A_RECORDING))
    places = {"": document.line_place, **{name: item.line_place for name, item in top.items()}}
    pins = _pins(top.get("pin"), places)
    return SpecFile(
        section=Section(models=(), places=places),
        source=top["source"].text(("recording",)),
        targets=_targets(top.get("targets")),
        pins=pins,
        recording=recording_of(top["recording"]),
    )


def _check_version(version: Item) -> None:
    if version.integer() != 1:
        raise version.error("a spec version this release does not read", "1")


def _axes(matrix: Item | None, max_num_seqs: int, places: dict[str, str]) -> _Axes:
    axes: _Axes = {}
    for name, item in (matrix.fields(tuple(AXES)) if matrix else {}).items():
        places[item.field] = item.line_place
        axes[name] = tuple(_axis_value(name, value) for value in item.elements())
        if name == "num_seqs":
            _check_num_seqs(item, max_num_seqs)
    return axes


def _axis_value(name: str, item: Item) -> AxisValue:
    """One value of an axis, in its one spelling."""
    if name == "chunk_size":
        return _chunk_size(item)
    if name == "num_seqs":
        try:
            return parse_num_seqs(item.scalar(NUM_SEQS_FORMS))
        except ValueError as error:
            mend = nearest(item.shown, ("many",))
            raise item.error(str(error), NUM_SEQS_FORMS, mend) from error
    allowed = AXES[name].allowed
    if allowed == (False, True):
        return item.boolean()
    if item.shown in ("null", "~", "nothing") and "none" in allowed:
        raise item.error("not an allowed value", ", ".join(map(str, allowed)), "write none")
    return item.text([str(value) for value in allowed])


def _check_num_seqs(axis: Item, max_num_seqs: int) -> None:
    for item in axis.elements():
        low, high = num_seqs_bounds(str(_axis_value("num_seqs", item)), max_num_seqs)
        if low > high or high > max_num_seqs:
            raise item.error(
                "more sequences than a batch may have",
                wanted=f"at most max_num_seqs, {max_num_seqs}",
                mend="raise max_num_seqs, or ask for fewer",
            )


def _chunk_size(item: Item) -> int:
    value = item.integer()
    with _at(item):
        check_chunk_size(value)
    return value


def _models(
    models: Item, chunk_sizes: tuple[AxisValue, ...], places: dict[str, str]
) -> tuple[ModelGeometry, ...]:
    found = models.fields()
    if not found:
        raise models.error("no models", "at least one model", found="{}")
    return tuple(_model(name, item, chunk_sizes, places) for name, item in found.items())


def _model(
    name: str, item: Item, chunk_sizes: tuple[AxisValue, ...], places: dict[str, str]
) -> ModelGeometry:
    fields = item.fields(_MODEL)
    places[item.field] = item.line_place
    for required in _REQUIRED:
        if required not in fields:
            raise _missing(item, required, fields, _REQUIRED)
    own = fields.get("chunk_size")
    sizes = tuple(_chunk_size(size) for size in own.elements()) if own else chunk_sizes
    tp = fields.get("tp")
    geometry = ModelGeometry(
        name=name,
        **{number: fields[number].integer() for number in LIMITS if number in fields},
        tp=tuple(size.integer() for size in tp.elements()) if tp else (1,),
        chunk_size=tuple(int(size) for size in sizes),
    )
    with _at(item, fields):
        geometry.check()
    for size in tp.elements() if tp else ():
        with _at(size):
            geometry.per_rank(size.integer())
    return geometry


def _exclusions(exclude: Item | None, models: tuple[ModelGeometry, ...]) -> tuple[Exclusion, ...]:
    if exclude is None:
        return ()
    names = [model.name for model in models]
    entries = []
    for item in exclude.elements():
        fields = item.fields((*AXES, "model", "tp"))
        if not fields:
            raise item.error("an exclusion of everything", "at least one axis, model or tp")
        matches = tuple(
            (name, tuple(_exclusion_value(name, value, names) for value in field.elements()))
            for name, field in fields.items()
        )
        entries.append(Exclusion(matches, item.place))
    return tuple(entries)


def _exclusion_value(name: str, item: Item, models: list[str]) -> AxisValue:
    if name == "model":
        return item.text(models)
    return item.integer() if name == "tp" else _axis_value(name, item)


def _targets(targets: Item | None) -> tuple[str, ...]:
    names = []
    for item in targets.elements() if targets else ():
        with _at(item):
            names.append(target(item.text()).name)
    return tuple(names)


def _pins(pin: Item | None, places: dict[str, str]) -> dict[tuple[str, str], Constant]:
    pins: dict[tuple[str, str], Constant] = {}
    for kernel, options in (pin.fields() if pin else {}).items():
        found = options.fields()
        if not found:
            raise options.error("a pin of nothing", "at least one option", found="{}")
        places[options.field] = options.line_place
        for option, value in found.items():
            places[value.field] = value.line_place
            pins[kernel, option] = value.constant()
    return pins


def _missing(item: Item, name: str, present: Iterable[str], wanted: Iterable[str]) -> SpecError:
    found = ", ".join(present) or "no fields"
    return item.error(f"field '{name}' is missing", ", ".join(wanted), f"add {name}", found)


@contextmanager
def _at(item: Item, fields: Mapping[str, Item] | None = None) -> Iterator[None]:
    """Puts the place of `item`, or of the one of `fields` that a rule names, into its error."""
    try:
        yield
    except SpecError as error:
        error.where = (fields or {}).get(error.where, item).place
        raise
