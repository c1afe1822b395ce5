"""All examinations in one go, none of which can end the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping

from ssd_aot.doctor.diagnosis import PURPOSES, Diagnosis, Item, Purpose
from ssd_aot.doctor.probing import Probed, probe

_QUESTIONS = {name: (name,) for name in ("torch", "triton", "driver")}


def examine(environment: Mapping[str, str] | None = None) -> Diagnosis:
    """What this host has and lacks. Imports no engine, makes no CUDA context, raises nothing."""
    variables = os.environ if environment is None else environment
    answers = probe(_QUESTIONS)
    torch, triton, driver = (answers[name] for name in _QUESTIONS)

    def toolchain() -> Iterable[Item]:
        from ssd_aot.doctor.toolchain import toolchain_items

        return toolchain_items(torch, triton)

    def host() -> Iterable[Item]:
        from ssd_aot.doctor.host import host_items

        return host_items(variables, _compiled_into(triton))

    def gpus() -> Iterable[Item]:
        from ssd_aot.doctor.gpus import gpu_items

        return gpu_items(driver)

    def packages() -> Iterable[Item]:
        from ssd_aot.doctor.packages import package_items

        return package_items()

    def service() -> Iterable[Item]:
        from ssd_aot.doctor.gpus import devices_of
        from ssd_aot.doctor.service import service_items

        return service_items(variables, devices_of(driver))

    stops: dict[Callable[[], Iterable[Item]], tuple[Purpose, ...]] = {
        toolchain: PURPOSES, host: ("build", "tune"), gpus: ("tune", "serve"), packages: (),
        service: ("serve",),
    }  # fmt: skip
    return Diagnosis(tuple(item for part in stops for item in _guarded(part, stops[part])))


def _compiled_into(triton: Probed) -> Mapping[str, str]:
    found = triton.part("assemblers")
    return {} if found.trouble else dict(found.facts.get("environment", {}))


def _guarded(part: Callable[[], Iterable[Item]], stops: tuple[Purpose, ...]) -> list[Item]:
    """The items of a part, up to what could not be examined: that is not known to be there."""
    found: list[Item] = []
    try:
        for item in part():
            found.append(item)
    except Exception as error:
        found.append(Item("lacking" if stops else "note", part.__name__,
                          "could not be examined to the end", f"{type(error).__name__}: {error}",
                          purposes=stops))  # fmt: skip
    return found
