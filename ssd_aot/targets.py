"""GPU names, architectures and the limits that a build needs."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from ssd_aot.errors import SpecError


@dataclass(frozen=True)
class Target:
    """A GPU model by its common name.

    `shared_bytes_optin` is the opt-in shared memory a block may use, in bytes; `multiprocessors`
    the count that the choice of a kernel form is derived from. `device_names` are regular
    expressions, matched without regard to case at word boundaries of the name that CUDA reports.
    """

    name: str
    arch: str
    capability: tuple[int, int]
    shared_bytes_optin: int
    multiprocessors: int
    device_names: tuple[str, ...] = ()

    @property
    def compute_capability(self) -> int:
        """The number Triton's `GPUTarget("cuda", number, 32)` takes: 90 for (9, 0)."""
        major, minor = self.capability
        return major * 10 + minor

    def is_device(self, name: str, capability: tuple[int, int]) -> bool:
        """Whether a device of this name and compute capability is this model.

        A MIG slice has fewer multiprocessors than its GPU, so it is none of the models here.
        """
        if capability != self.capability or re.search(r"\bMIG\b", name):
            return False
        return any(re.search(rf"\b{p}\b", name, re.IGNORECASE) for p in self.device_names)


# Opt-in shared memory a block: CUDA C++ Programming Guide, "Technical Specifications per Compute
# Capability": 163 KiB (8.0), 99 KiB (8.9, 12.x), 227 KiB (9.0, 10.x).
_SM80 = 163 * 1024
_SM89 = _SM120 = 99 * 1024
_SM90 = _SM100 = 227 * 1024

# Multiprocessors: NVIDIA's architecture papers. h100 is the SXM model (the PCIe one has 114).
# The 148 of gb200, b300 and gb300 are taken from b200 and not confirmed: a Grace part may enable
# a few more, and 160 is what NVIDIA states for the whole Blackwell Ultra chip.
TARGETS: tuple[Target, ...] = (
    Target("h100", "sm_90a", (9, 0), _SM90, 132, ("H100",)),
    Target("h200", "sm_90a", (9, 0), _SM90, 132, ("H200",)),
    Target("gh200", "sm_90a", (9, 0), _SM90, 132, ("GH200",)),
    Target("b200", "sm_100a", (10, 0), _SM100, 148, ("B200",)),
    Target("gb200", "sm_100a", (10, 0), _SM100, 148, ("GB200",)),
    Target("b300", "sm_103a", (10, 3), _SM100, 148, ("B300",)),
    Target("gb300", "sm_103a", (10, 3), _SM100, 148, ("GB300",)),
    Target("a100", "sm_80", (8, 0), _SM80, 108, ("A100",)),
    Target("l40s", "sm_89", (8, 9), _SM89, 142, ("L40S",)),
    # The D and Laptop models of a GeForce are other chips or have fewer multiprocessors.
    Target("rtx-4090", "sm_89", (8, 9), _SM89, 128, (r"RTX 4090(?! D\b| Laptop)",)),
    Target("rtx-5090", "sm_120a", (12, 0), _SM120, 170, (r"RTX 5090(?! D\b| Laptop)",)),
    Target("rtx-pro-6000", "sm_120a", (12, 0), _SM120, 188, ("RTX PRO 6000 Blackwell",)),
    Target("gb10", "sm_121a", (12, 1), _SM120, 48, ("GB10",)),
)

_BY_NAME = {entry.name: entry for entry in TARGETS}


def target(name: str, where: str = "targets") -> Target:
    """The target of a name, without regard to case. Raises SpecError with the nearest names;
    `where` is the option or field that gave it."""
    found = _BY_NAME.get(name.lower())
    if found is not None:
        return found
    near = difflib.get_close_matches(name.lower(), _BY_NAME, n=3, cutoff=0.6)
    raise SpecError(
        "unknown GPU",
        where=where,
        found=name,
        wanted=f"one of {', '.join(_BY_NAME)}",
        mend=f"write {' or '.join(near)}" if near else "write one of these names",
    )


def target_for_device(name: str, capability: tuple[int, int]) -> Target | None:
    """The model that a CUDA device is, or None for one that has no name here."""
    return next((entry for entry in TARGETS if entry.is_device(name, capability)), None)
