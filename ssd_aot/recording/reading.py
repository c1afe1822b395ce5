"""A recording from its JSON values or a spec file, strictly."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ssd_aot.bundle.json_readers import (
    Misfit,
    Reader,
    constant,
    count,
    each,
    json_object,
    pair,
    record,
    sha256,
    table,
    text,
)
from ssd_aot.bundle.manifest import KernelText
from ssd_aot.documents import Item
from ssd_aot.errors import SpecError
from ssd_aot.launches import Argument, Configuration, Launch
from ssd_aot.recording.recorded import (
    RecordedKernel,
    RecordedLaunch,
    RecordedTuning,
    Recording,
    config_text,
)

FIELD = "recording"


def recording_of(item: Item) -> Recording:
    """The recording in a spec file. Raises SpecError with file and field."""
    values = yaml.SafeLoader("")
    try:
        data = values.construct_document(item.node)
    except (yaml.YAMLError, ValueError) as error:
        raise item.error(
            "not a recording", "what ssd-aot record wrote", found=str(error)
        ) from error
    made = recording_from_json(data, item.line_place)
    return Recording(**{**vars(made), "folders": (Path(item.file).resolve().parent,)})


def recording_from_json(data: Any, where: str) -> Recording:
    """The inverse of `Recording.to_json`. Raises SpecError with the field."""
    try:
        made = read_recording(data)
        check_recording(made)
    except Misfit as misfit:
        raise SpecError(
            f"not a recording: {misfit.what}",
            where=f"{where}: {FIELD}.{misfit.path}".rstrip("."),
            found=misfit.found,
            wanted=misfit.wanted,
            mend="record the program again",
        ) from None
    return made


def _candidate(value: Any) -> tuple[int, Configuration]:
    at, fields = pair(count, table(constant))(value)
    values = dict(fields)
    for name in ("num_warps", "num_stages"):
        try:
            count(values.get(name))
        except Misfit as misfit:
            raise misfit.inside(name) from None
    return at, Configuration.from_json(values)


def _arguments(value: Any) -> tuple[Argument, ...]:
    return tuple(Argument.parse(*item) for item in table(text)(value))


def _kernel(**fields: Any) -> RecordedKernel:
    return RecordedKernel(fields["source"], KernelText(fields["text"], fields["line"]))


def _tuning(value: Any) -> RecordedTuning:
    optional: dict[str, Reader[Any]] = {"winner": count, "reason": text}
    given = {n: r for n, r in optional.items() if isinstance(value, dict) and n in value}
    made: RecordedTuning = record(
        RecordedTuning, kernel=text, key=text, offered=each(_config), **given
    )(value)
    if made.winner is not None and made.winner >= len(made.offered):
        raise Misfit("no such candidate", str(made.winner), f"below {len(made.offered)}").inside(
            "winner"
        )
    try:
        _ = made.values
    except (ValueError, SyntaxError, TypeError):
        raise Misfit("not a tuning key", made.key, "a Python tuple of values").inside(
            "key"
        ) from None
    return made


def _config(value: Any) -> str:
    config = json_object(value)
    pairs = config.get("kwargs")
    try:
        each(pair(text, constant))(pairs)
    except Misfit as misfit:
        raise misfit.inside("kwargs") from None
    return config_text(config)


def _launch(value: Any) -> RecordedLaunch:
    given = {"tuning": text} if isinstance(value, dict) and "tuning" in value else {}

    def build(**fields: Any) -> RecordedLaunch:
        launch = Launch(
            fields["kernel"],
            fields["constexprs"],
            fields["arguments"],
            tuple(sorted(fields["options"])),
        )
        return RecordedLaunch(launch, fields["candidates"], fields["given"],
                              fields.get("tuning", ""))  # fmt: skip

    made: RecordedLaunch = record(
        build, kernel=text, constexprs=table(constant), arguments=_arguments,
        options=table(constant), given=table(constant), candidates=each(_candidate), **given,
    )(value)  # fmt: skip
    if not made.candidates:
        raise Misfit("no candidate", "[]", "one at least").inside("candidates")
    return made


def _recording(**fields: Any) -> Recording:
    return Recording(**fields)


read_recording: Reader[Recording] = record(
    _recording,
    recorded_on=each(text),
    kernels=table(record(_kernel, source=sha256, text=sha256, line=count)),
    tunings=each(_tuning),
    launches=each(_launch),
    left_out=table(text),
)


def check_recording(recording: Recording) -> Mapping[tuple[str, str], RecordedTuning]:
    """The tunings by kernel and key. Raises Misfit for a launch of a kernel or a tuning that the
    recording does not have."""
    kernels = dict(recording.kernels)
    tunings = {(tuning.kernel, tuning.key): tuning for tuning in recording.tunings}
    for number, one in enumerate(recording.launches):
        kernel = one.launch.kernel
        if kernel not in kernels:
            raise Misfit("a launch of an unknown kernel", kernel, "a name in `kernels`").inside(
                f"launches[{number}]"
            )
        if one.tuning and (kernel, one.tuning) not in tunings:
            raise Misfit("a launch of an unknown tuning", one.tuning, "a key in `tunings`").inside(
                f"launches[{number}]"
            )
    return tunings
