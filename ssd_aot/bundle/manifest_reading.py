"""Reading `manifest.json`: strictly, and fast enough for the start of a server."""

from __future__ import annotations

import gc
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from ssd_aot.bundle.entries import (
    FORMAT,
    CodeObject,
    KernelText,
    ManifestParts,
    Source,
    TargetEntry,
    Toolchain,
    Tuning,
    VariantEntry,
)
from ssd_aot.bundle.json_readers import (
    Misfit,
    NotJson,
    constant,
    count,
    each,
    flag,
    json_object,
    microseconds,
    pair,
    parse_json,
    record,
    sha256,
    spelled,
    table,
    text,
)
from ssd_aot.bundle.layout import refuse_path
from ssd_aot.bundle.manifest_json import MEND, check_references
from ssd_aot.bundle.needs import needs_reader
from ssd_aot.bundle.triton_files import read_triton_files
from ssd_aot.errors import BundleError
from ssd_aot.launches import Argument, Configuration, Launch

T = TypeVar("T")
M = TypeVar("M", bound=ManifestParts)


def read_manifest(source: str | bytes, where: str, kind: type[M]) -> M:
    """The manifest in `source`, as a `kind`; `where` names its file. Raises BundleError with the
    field, the value found and the value wanted for anything that `write_manifest` would not have
    written."""
    try:
        data = parse_json(source)
    except NotJson as error:
        raise BundleError(
            "the manifest is not JSON", error.place(where), error.what, "canonical JSON", MEND
        ) from error
    form = data.get("format") if isinstance(data, dict) else None
    if isinstance(form, int) and form != FORMAT:
        raise BundleError(
            "the manifest has a format that this ssd-aot does not read",
            f"{where}: format",
            str(form),
            str(FORMAT),
            "use an ssd-aot of the version that built it, or build the bundle anew",
        )
    try:
        with _without_collecting():
            manifest = _Tables().manifest(data, kind)
    except Misfit as misfit:
        place = f"{where}: {misfit.path}" if misfit.path else where
        raise BundleError(misfit.what, place, misfit.found, misfit.wanted, MEND) from None
    check_references(manifest, where)
    return manifest


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Reading makes many objects and no cycles; a collection over all of torch's, which they would
    set off, takes several times as long as the reading."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


_signatures = each(pair(text, json_object))

read_toolchain = record(
    Toolchain,
    triton_version=text,
    triton_content=text,
    ptxas_version=text,
    python_abi=text,
    platform=text,
    environment=table(text),
)

_target = record(
    TargetEntry,
    name=text,
    arch=text,
    capability=pair(count, count),
    shared_bytes_optin=count,
    multiprocessors=count,
    walk_programs=count,
    walk_tokens=count,
)

_tuning = record(Tuning, status=text, checked=flag, median_us=microseconds, default_us=microseconds)


def _files(value: Any) -> tuple[tuple[str, str, int], ...]:
    entries = table(pair(sha256, count))(value)
    for path, _ in entries:
        wanted = refuse_path(path)
        if wanted:
            raise Misfit("a path that no bundle holds", spelled(path), wanted)
    return tuple((path, digest, size) for path, (digest, size) in entries)


class _Words(dict[Any, T]):
    """Values made from strings of words, each once: few distinct ones fill all the lists."""

    def __init__(self, build: Callable[..., T], counts: Container[int], wanted: str) -> None:
        super().__init__()
        self._build, self._counts, self._wanted = build, counts, wanted

    def __missing__(self, value: Any) -> T:
        words = value.split(" ") if type(value) is str else []
        if len(words) not in self._counts or not all(words):
            raise Misfit("not in the form wanted", spelled(value), self._wanted)
        made = self[value] = self._build(*words)
        return made

    def read(self, value: Any) -> tuple[T, ...]:
        if type(value) is not list:
            raise Misfit("a value of the wrong type", spelled(value), "a list of strings")
        try:
            return tuple([self[item] for item in value])
        except TypeError:  # not hashable
            raise Misfit("a value of the wrong type", spelled(value), self._wanted) from None


def _parameter(name: str, kind: str) -> tuple[str, str]:
    return name, kind


def _configuration(value: Any) -> Configuration:
    values = dict(table(constant)(value))
    for name in ("num_warps", "num_stages"):
        if name not in values:
            raise Misfit("a field is missing", "nothing", "a value").inside(name)
    for name in ("num_warps", "num_stages", "maxnreg"):
        if name in values:
            try:
                count(values[name])
            except Misfit as misfit:
                raise misfit.inside(name) from None
    return Configuration.from_json(values)


class _Tables:
    """What variants point into, filled while the fields before `variants` are read."""

    def __init__(self) -> None:
        self._launches: dict[str, Launch] = {}
        self._ids: tuple[str, ...] = ()
        arguments = _Words(Argument, (2, 3), "a name, a type and perhaps a class")
        self._read_launches = table(
            record(
                Launch,
                kernel=text,
                constexprs=each(pair(text, constant)),
                arguments=arguments.read,
                options=table(constant),
            )
        )
        self._read_variants = each(
            record(
                VariantEntry,
                target=text,
                launch=self._launch,
                configuration=_configuration,
                object=record(
                    CodeObject,
                    sha256=sha256,
                    size_bytes=count,
                    function=text,
                    arch=text,
                    num_warps=count,
                    num_ctas=count,
                    shared_bytes=count,
                    registers=count,
                    spill_bytes=count,
                    global_scratch_bytes=count,
                    profile_scratch_bytes=count,
                    launch_pdl=flag,
                    launch_cooperative=flag,
                    parameters=_Words(_parameter, (2,), "a name and a type").read,
                ),
                tuning=_tuning,
                signatures=self._named,
            )
        )

    def manifest(self, data: Any, kind: type[M]) -> M:
        # Fields are read in this order: the tables before the variants.
        readers = {
            "triton": read_triton_files,
            "needs": needs_reader(self._named),
            "texts": table(record(KernelText, sha256=sha256, line=count)),
        }
        optional = {n: r for n, r in readers.items() if isinstance(data, dict) and n in data}
        return record(
            partial(_build, kind),
            format=count,
            launches=self._fill_launches,
            signatures=self._fill_signatures,
            variants=self._read_variants,
            files=_files,
            launch_abi=text,
            missing=each(text),
            source=record(Source, name=text, version=text, kernels=table(sha256)),
            spec=json_object,
            spec_digest=text,
            targets=each(_target),
            toolchain=read_toolchain,
            **optional,
        )(data)

    def _fill_launches(self, value: Any) -> None:
        self._launches = dict(self._read_launches(value))

    def _fill_signatures(self, value: Any) -> tuple[tuple[str, dict[str, Any]], ...]:
        signatures = _signatures(value)
        self._ids = tuple(name for name, _ in signatures)
        return signatures

    def _launch(self, value: Any) -> Launch:
        if type(value) is not str or value not in self._launches:
            raise Misfit("an unknown launch", spelled(value), "a key of `launches`")
        return self._launches[value]

    def _named(self, value: Any) -> tuple[str, ...]:
        if type(value) is not list or not set(map(type, value)) <= {int}:
            raise Misfit("a value of the wrong type", spelled(value), "a list of integers")
        ids = self._ids
        if value and not 0 <= min(value) <= max(value) < len(ids):
            wanted = f"positions from 0 to {len(ids) - 1}"
            raise Misfit("an unknown signature", spelled(value), wanted)
        return tuple([ids[i] for i in value])


def _build(kind: type[M], *, format: int, launches: None, **fields: Any) -> M:
    return kind(**fields)
