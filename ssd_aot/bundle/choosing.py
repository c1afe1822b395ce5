"""Which of a bundle's targets serves a device, and whether this host may use the bundle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ssd_aot.bundle.manifest import Manifest, TargetEntry
from ssd_aot.errors import MismatchError

BUILTIN = "builtin"


@dataclass(frozen=True)
class DeviceFacts:
    """A GPU as the driver reports it; `target` is the target it matches by name, or None."""

    name: str
    capability: tuple[int, int]
    target: str | None = None


def choose_target(
    targets: Sequence[TargetEntry],
    capability: tuple[int, int],
    device_name: str,
    device_target: str | None = None,
) -> tuple[TargetEntry, bool]:
    """The target that serves the device, and whether it is borrowed from another GPU model.

    By compute capability first, then by `device_target`, the name of the target that the device
    is. Code runs on its own capability alone: sm_100a code does not run on sm_103. Without a
    target of that name the first of the right capability, in the order of names, is borrowed.
    Raises MismatchError when no target has the device's capability.
    """
    able = sorted((t for t in targets if t.capability == capability), key=lambda t: t.name)
    if not able:
        have = ", ".join(f"{t.name} ({_spelled(t.capability)})" for t in targets)
        raise MismatchError(
            "the bundle has no target for this device",
            where=device_name,
            found=f"compute capability {_spelled(capability)}",
            wanted=have or "no target at all",
            mend=f"ssd-aot build --gpu {device_target or 'NAME'}"
            + ("" if device_target else ", NAME being this GPU's"),
        )
    for target in able:
        if target.name == device_target:
            return target, False
    return able[0], True


def _spelled(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def check_host(manifest: Manifest, host_platform: str, python_abi: str) -> None:
    """Refuse engine kernels on another host platform or Python ABI than they were built with.

    Triton's own keys hold both, and host modules are compiled for both. Builtin kernels are
    launched through the driver alone, so for them the two fields only say where they come from.
    Raises MismatchError.
    """
    if manifest.source.name == BUILTIN:
        return
    built = manifest.toolchain
    for field, found, wanted in (
        ("platform", host_platform, built.platform),
        ("python_abi", python_abi, built.python_abi),
    ):
        if found != wanted:
            raise MismatchError(
                f"kernels of source `{manifest.source.name}` were built for another host",
                where=f"toolchain.{field}",
                found=f"{found} (this host)",
                wanted=f"{wanted} (the bundle)",
                mend="build the bundle in the image that serves it, or use the builtin kernels",
            )
