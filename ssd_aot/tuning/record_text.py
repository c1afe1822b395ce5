"""A tuning record as text: JSON with one line a candidate, so that a diff shows what changed."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ssd_aot.bundle.json_readers import (
    Misfit,
    NotJson,
    Reader,
    constant,
    count,
    each,
    json_object,
    microseconds,
    pair,
    parse_json,
    record,
    sha256,
    table,
    text,
)
from ssd_aot.errors import UsageError
from ssd_aot.launches import Configuration
from ssd_aot.tuning.records import Entry, FormPoint, Record, Session, Trial
from ssd_aot.writing import write_error

FORMAT = 1

OF_ENGINES: dict[str, Any] = {"tuning": "", "engine": "", "judged": []}
"""Fields of an entry that only engines' kernels have, and what they are without them."""


def write_record(path: Path, made: Record) -> None:
    """Written beside its place and renamed. Raises `HostError` where it cannot be written."""
    content = to_text(made)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_text(content, encoding="utf-8")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise write_error(error, path.parent, len(content)) from error


def read_record(path: Path) -> Record:
    """Raises `UsageError`, with file and field, for what is no record."""
    try:
        return from_text(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(str(path), str(error)) from error


def record_at(out: Path, gpu: str, source: str, *, else_of: str = "another's") -> Record:
    """The record there, or a new one. Raises `UsageError`, which says whose it is in the words of
    `else_of`, for that of another GPU or source."""
    record = read_record(out) if out.exists() else Record(gpu, source)
    if (record.gpu, record.source) != (gpu, source):
        raise UsageError(
            f"this record is {else_of}",
            where=str(out),
            found=record.name,
            wanted=f"{gpu}.{source}",
            mend="write to another file",
        )
    return record


def to_text(made: Record) -> str:
    sessions = {entry.session.id: entry.session for entry in made.entries}
    head = {"format": FORMAT, "gpu": made.gpu, "source": made.source}
    parts = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
    lines = [f"{json.dumps(key)}: {_line(asdict(sessions[key]))}" for key in sorted(sessions)]
    parts.append('"sessions": ' + _block("{", lines, "}"))
    parts.append('"forms": ' + _block("[", [_line(asdict(p)) for p in made.forms], "]"))
    parts.append('"entries": ' + _block("[", map(_entry_text, made.entries), "]"))
    return "{\n" + ",\n".join(parts) + "\n}\n"


def from_text(content: str, where: str) -> Record:
    try:
        data = parse_json(content)
        sessions: dict[str, Session] = {}
        made = record(
            _record,
            format=_format,
            gpu=text,
            source=text,
            sessions=partial(_fill_sessions, sessions),
            forms=each(_form_point),
            entries=each(_entry(sessions)),
        )(data)
    except NotJson as error:
        raise _unreadable(error.place(where), error.what) from error
    except Misfit as misfit:
        raise UsageError(
            f"the tuning record cannot be read: {misfit.what}",
            where=f"{where}: {misfit.path}" if misfit.path else where,
            found=misfit.found,
            wanted=misfit.wanted,
            mend="measure again, or take the file from version control",
        ) from misfit
    return made


def trial_line(trial: Trial) -> str:
    """One trial as one line of JSON."""
    return _line({**asdict(trial), "configuration": trial.configuration.to_json()})


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=True, allow_nan=False)


def _block(opening: str, lines: Iterable[str], closing: str) -> str:
    inner = ",\n".join(lines)
    return f"{opening}\n{inner}\n{closing}" if inner else opening + closing


def _entry_text(entry: Entry) -> str:
    values: dict[str, Any] = {
        **asdict(entry),
        "session": entry.session.id,
        "default": entry.default.to_json(),
        "winner": entry.winner.to_json() if entry.winner else None,
    }
    del values["trials"]
    for name in OF_ENGINES:
        # Left out where they say nothing, as records of builtin kernels have always been written.
        if not values[name]:
            del values[name]
    head = _line(values)[:-1]
    return f'{head}, "trials": ' + _block("[", map(trial_line, entry.trials), "]") + "}"


def _record(**values: Any) -> Record:
    made = Record(values["gpu"], values["source"], values["entries"], values["forms"])
    # In their canonical order, whoever edited the file.
    return made.with_entries(())


def _fill_sessions(sessions: dict[str, Session], value: Any) -> None:
    sessions.update(table(_session)(value))


def _format(value: Any) -> int:
    if value != FORMAT:
        raise Misfit("a record of another format", json.dumps(value), str(FORMAT))
    return FORMAT


def _configuration(value: Any) -> Configuration:
    fields = json_object(value)
    for name in ("num_warps", "num_stages"):
        count(fields.get(name))
    for field in fields.values():
        constant(field)
    return Configuration.from_json(fields)


def _optional(read: Reader[Any]) -> Reader[Any]:
    return lambda value: None if value is None else read(value)


def _time(value: Any) -> float:
    number = microseconds(value)
    if number is None or number <= 0:
        raise Misfit("not a time", json.dumps(value), "microseconds above 0")
    return number


_session = record(
    Session, date=text, device=text, driver=text, triton_version=text, triton_content=text,
    ptxas_version=text, environment=each(pair(text, text)),
)  # fmt: skip

read_trial: Reader[Trial] = record(
    Trial, configuration=_configuration, times_us=each(_time), rejected=text,
    error=microseconds, registers=_optional(count), spill_bytes=_optional(count), repeats=count,
)  # fmt: skip

_form_point = record(
    FormPoint, geometry=text, heads=count, sequences=count, tokens=count, walk_us=_time,
    segments_us=_time, date=text,
)  # fmt: skip


def _entry(sessions: dict[str, Session]) -> Reader[Entry]:
    def session(value: Any) -> Session:
        if text(value) not in sessions:
            raise Misfit("an unknown session", json.dumps(value), "one under `sessions`")
        return sessions[value]

    read = record(
        Entry, identity=sha256, kernel=text, launch=text, session=session, source=sha256,
        offered=sha256, offered_count=count, workloads=each(text), default=_configuration,
        winner=_optional(_configuration), trials=each(read_trial), tuning=text, engine=text,
        judged=each(sha256),
    )  # fmt: skip
    return lambda value: read({**OF_ENGINES, **value} if type(value) is dict else value)


def _unreadable(where: str, found: str) -> UsageError:
    return UsageError(
        "the tuning record cannot be read",
        where=where,
        found=found,
        wanted="a record that `ssd-aot tune` wrote",
        mend="measure again, or take the file from version control",
    )
