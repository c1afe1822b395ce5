"""The CUDA driver, the GPUs here, and what is known about each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ssd_aot.bundle.choosing import DeviceFacts
from ssd_aot.doctor.diagnosis import Item
from ssd_aot.doctor.probing import Probed
from ssd_aot.errors import SsdAotError
from ssd_aot.targets import TARGETS, Target, target_for_device
from ssd_aot.tuning.choices import FOLDER, SOURCE, shipped_folder
from ssd_aot.tuning.record_text import read_record


def devices_of(driver: Probed) -> list[DeviceFacts]:
    """The GPUs that a probe of the driver told of."""
    found = []
    for device in driver.facts.get("devices", ()):
        name, capability = str(device["name"]), tuple(device["capability"])
        known = target_for_device(name, capability)
        found.append(DeviceFacts(name, capability, known.name if known else None))
    return found


def gpu_items(driver: Probed) -> Iterator[Item]:
    if driver.trouble:
        yield Item("lacking", "CUDA driver", "cannot be used", driver.trouble,
                   "an NVIDIA driver; building does without",
                   driver.mend or "install NVIDIA's driver (in a container: --gpus)",
                   ("tune", "serve"))  # fmt: skip
        return
    yield Item("ok", "CUDA driver", f"for CUDA {driver.facts['cuda']}")
    devices = devices_of(driver)
    if not devices:
        yield Item("lacking", "GPU", "none here", "no CUDA device", "a GPU; building does without",
                   "make one visible (CUDA_VISIBLE_DEVICES, in a container --gpus)",
                   ("tune", "serve"))  # fmt: skip
    for index, device in enumerate(devices):
        yield from _gpu(f"GPU {index}", device)
    for name in dict.fromkeys(device.target for device in devices if device.target):
        yield _record(name)


def _gpu(label: str, device: DeviceFacts) -> Iterator[Item]:
    major, minor = device.capability
    what = f"{device.name}, compute capability {major}.{minor}"
    alike = [target for target in TARGETS if target.capability == device.capability]
    if device.target:
        yield Item("ok", label, f"{what}, is {device.target}")
    elif alike:
        names = ", ".join(target.name for target in alike)
        yield Item("note", label, f"{what}, has no name of its own: a bundle for {names} serves it "
                   "as borrowed, and nothing can be tuned on it")  # fmt: skip
    else:
        yield Item("lacking", label, f"{what}, is not supported", "", _supported(TARGETS),
                   "use one of these", ("tune", "serve"))  # fmt: skip


def _supported(targets: tuple[Target, ...]) -> str:
    return ", ".join(target.name for target in targets)


def _record(name: str) -> Item:
    """The records that builds for this GPU choose by."""
    file = f"{name}.{SOURCE}.json"
    paths: list[Path] = [path / file for path in (FOLDER, shipped_folder())]
    found = [path for path in paths if path.exists()]
    mend = f"ssd-aot tune --gpu {name}"
    if not found:
        what = f"none for {name}: its configurations are borrowed or the default"
        return Item("note", "tuning record", what, "", "", mend)
    try:
        entries = len(read_record(found[0]).entries)
    except SsdAotError as error:
        what = f"that for {name} cannot be read"
        return Item("lacking", "tuning record", what, f"{error.where}: {error.what}", "",
                    error.mend, ("build",))  # fmt: skip
    return Item("ok", "tuning record", f"{found[0]}, {entries} launches measured on {name}")
