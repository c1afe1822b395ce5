"""The events of all processes of a program, as one recording."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ssd_aot.bundle.manifest import KernelText
from ssd_aot.launches import Configuration, Constant, Launch
from ssd_aot.recording.recorded import (
    RecordedKernel,
    RecordedLaunch,
    RecordedTuning,
    Recording,
    config_of,
    config_text,
)
from ssd_aot.targets import target_for_device

OTHER_SOURCE = "two sources of one name were run"
UNKEYED = "its tuning key holds what cannot be written down"


def gather(folder: Path) -> Recording:
    """The recording of the events in a folder. Lines that a killed process left half are passed
    over."""
    events = list(_events(folder))
    launches = [event for event in events if event["event"] == "launch"]
    kernels: dict[str, RecordedKernel] = {}
    left_out = {e["kernel"]: e["reason"] for e in events if e["event"] == "left out"}
    for event in launches:
        kernel = RecordedKernel(event["source"], KernelText(**event["text"]))
        if kernels.setdefault(event["kernel"], kernel) != kernel:
            left_out[event["kernel"]] = OTHER_SOURCE
    tunings = _tunings(event for event in events if event["event"] == "tuning")
    for (name, _), tuning in tunings.items():
        try:
            _ = tuning.values
        except (ValueError, SyntaxError, TypeError):
            left_out[name] = UNKEYED
    kept = [event for event in launches if left_out.get(event["kernel"]) not in (
        OTHER_SOURCE, UNKEYED)]  # fmt: skip
    names = {event["kernel"] for event in kept}
    return Recording(
        kernels=tuple((name, kernel) for name, kernel in kernels.items() if name in names),
        tunings=tuple(one for (name, _), one in tunings.items() if name in names),
        launches=tuple(_launches(kept, tunings)),
        left_out=tuple(left_out.items()),
        recorded_on=tuple(_gpus(launches)),
    )


def _events(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue


def _gpus(launches: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for event in launches:
        if event["gpu"]:
            name, *capability = event["gpu"]
            known = target_for_device(name, (capability[0], capability[1]))
            if known is not None:
                yield known.name


def _tunings(events: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], RecordedTuning]:
    found: dict[tuple[str, str], RecordedTuning] = {}
    for event in events:
        offered = tuple(config_text(config) for config in event["offered"])
        winner = config_text(event["winner"]) if event["winner"] else ""
        at = offered.index(winner) if winner in offered else None
        place = event["kernel"], event["tuning"]
        made = RecordedTuning(*place, offered, at, event["reason"])
        if place not in found or found[place].winner is None:
            found[place] = made
    return found


def _launches(
    events: Sequence[Mapping[str, Any]], tunings: Mapping[tuple[str, str], RecordedTuning]
) -> Iterator[RecordedLaunch]:
    tuned: dict[tuple[str, Launch], list[Mapping[str, Any]]] = {}
    for event in events:
        launch = Launch.from_json(event["launch"])
        if "tuning" not in event:
            configuration = Configuration.from_json(event["configuration"])
            yield RecordedLaunch(launch, ((0, configuration),), _given(event))
        else:
            own = {*event["config"]["kwargs"], *event["derives"]}
            tuned.setdefault((event["tuning"], _without(launch, own)), []).append(event)
    for (key, bare), group in tuned.items():
        yield from _tuned(key, bare, group, tunings[bare.kernel, key])


def _tuned(
    key: str, bare: Launch, events: Sequence[Mapping[str, Any]], tuning: RecordedTuning
) -> Iterator[RecordedLaunch]:
    """Launches that differ in nothing but what a candidate chooses, and what heuristics derive.

    Without heuristics each candidate's launch is known though only one was seen. With them, those
    of a trial belong together; one that came later can derive other values, and stands alone.
    """
    if not any(event["derives"] for event in events):
        candidates = tuple(
            (at, _configuration(config_of(config), {})) for at, config in enumerate(tuning.offered)
        )
        yield RecordedLaunch(bare, candidates, _given_to_all(events[0]), key)
        return
    runs: list[dict[int, tuple[Configuration, Mapping[str, Any]]]] = []
    for event in events:
        values = dict(Launch.from_json(event["launch"]).constexprs)
        at = tuning.offered.index(config_text(event["config"]))
        derived = {name: values[name] for name in event["derives"] if name in values}
        made = _configuration(event["config"], derived)
        run = next((r for r in runs if event["trial"] and at not in r), None)
        if run is None:
            run = next((r for r in runs if r.get(at, (None,))[0] == made), None)
        if run is None:
            run = {}
            runs.append(run)
        run.setdefault(at, (made, event))
    for run in runs:
        yield RecordedLaunch(
            bare,
            tuple((at, made) for at, (made, _) in sorted(run.items())),
            _given_to_all(events[0]),
            key,
        )


def _configuration(config: Mapping[str, Any], derived: Mapping[str, Constant]) -> Configuration:
    return Configuration(
        tuple(sorted({**config["kwargs"], **derived}.items())),
        config["num_warps"],
        config["num_stages"],
        config.get("maxnreg"),
    )


def _without(launch: Launch, own: set[str]) -> Launch:
    kept = tuple(pair for pair in launch.constexprs if pair[0] not in own)
    return Launch(launch.kernel, kept, launch.arguments, launch.options)


def _given(event: Mapping[str, Any]) -> tuple[tuple[str, Constant], ...]:
    return tuple((name, value) for name, value in event["given"])


def _given_to_all(event: Mapping[str, Any]) -> tuple[tuple[str, Constant], ...]:
    """What is given with whatever candidate: what that chooses has a place and no value."""
    chosen = event["config"]
    return tuple((n, None if chosen.get(n) is not None else v) for n, v in event["given"])
