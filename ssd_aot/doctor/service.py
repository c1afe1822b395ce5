"""The bundle that the environment puts in service, held to what its load will ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ssd_aot.bundle.choosing import BUILTIN, DeviceFacts, choose_target
from ssd_aot.bundle.store import Bundle
from ssd_aot.doctor.diagnosis import Item
from ssd_aot.doctor.probing import probe
from ssd_aot.errors import SsdAotError
from ssd_aot.operation import launch_abi
from ssd_aot.runtime.accepting import accept, refuse_changed
from ssd_aot.runtime.triton_service import BUNDLE


def service_items(environment: Mapping[str, str], devices: Sequence[DeviceFacts]) -> Iterator[Item]:
    path = environment.get(BUNDLE, "")
    if not path:
        yield Item("note", "bundle", f"none is in service: {BUNDLE} is not set")
        return
    try:
        bundle = accept(path)
        refuse_changed(bundle)
        for device in devices:
            _check_served(bundle, device)
    except SsdAotError as error:
        yield _refused(error)
        return
    manifest = bundle.manifest
    if manifest.source.name == BUILTIN and manifest.launch_abi != launch_abi():
        yield Item("lacking", "bundle", "is for another launch interface than this release has",
                   manifest.launch_abi, launch_abi(), "build it anew with this release",
                   ("serve",))  # fmt: skip
        return
    if manifest.source.name != BUILTIN:
        identity = probe({"identity": ("identity", str(bundle.path))})["identity"]
        if identity.trouble:
            yield Item("lacking", "bundle", "is for another toolchain", identity.trouble,
                       identity.wanted, identity.mend, ("serve",))  # fmt: skip
            return
    targets = ", ".join(target.name for target in manifest.targets)
    yield Item("ok", "bundle", f"{bundle.path}, source {manifest.source.name}, for {targets}, "
               f"whole, digest {bundle.digest[:16]}…")  # fmt: skip


def _check_served(bundle: Bundle, device: DeviceFacts) -> None:
    choose_target(bundle.manifest.targets, device.capability, device.name, device.target)


def _refused(error: SsdAotError) -> Item:
    what = f"{error.where}: {error.what}" if error.where else error.what
    return Item("lacking", "bundle", what, error.found, error.wanted, error.mend, ("serve",))
