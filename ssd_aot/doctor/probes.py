"""What a process of its own finds out: run by `probing`, which takes the last line it prints.

Each probe answers with plain JSON values. What is broken enough to raise is told under `trouble`;
what is broken enough to end the process is told by `probing`.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

Facts = dict[str, Any]


def torch_facts() -> Facts:
    """Whether torch can be imported, and for which CUDA it was made. It touches no device."""
    import torch

    return {"version": torch.__version__, "cuda": torch.version.cuda or ""}


def triton_facts() -> Facts:
    """Triton's version and identity, its assemblers, and the architectures they know."""
    import triton

    from ssd_aot.targets import TARGETS, Target
    from ssd_aot.triton_compat import check_ptxas, layout_can_be_fixed, toolchain

    facts: Facts = {"version": triton.__version__}
    facts["identity"] = _tried(lambda: {"content": toolchain().triton_content})
    facts["assemblers"] = _tried(
        lambda: {
            "versions": toolchain().ptxas_version, "environment": dict(toolchain().environment)
        }
    )  # fmt: skip
    facts["layout"] = _tried(lambda: {"fixed": layout_can_be_fixed()})

    def assembles(target: Target) -> Facts:
        check_ptxas(target)
        return {}

    facts["architectures"] = {
        arch: _tried(partial(assembles, target))
        for arch, target in {target.arch: target for target in TARGETS}.items()
    }
    return facts


def driver_facts() -> Facts:
    """The CUDA driver's version and its devices; makes no context on any."""
    from ssd_aot.runtime import driver

    version, count = ctypes.c_int(), ctypes.c_int()
    driver.call("cuDriverGetVersion", ctypes.byref(version))
    driver.call("cuDeviceGetCount", ctypes.byref(count))
    devices = [driver.device(index) for index in range(count.value)]
    return {
        "cuda": f"{version.value // 1000}.{version.value % 1000 // 10}",
        "devices": [{"name": d.name, "capability": list(d.capability)} for d in devices],
    }


def identity_facts(path: str) -> Facts:
    """Whether an engine's bundle was built with the toolchain that is here."""
    from ssd_aot.bundle.store import Bundle
    from ssd_aot.runtime.engine_loading import check_identity

    check_identity(Bundle.open(path))
    return {}


PROBES: dict[str, Callable[..., Facts]] = {
    "torch": torch_facts,
    "triton": triton_facts,
    "driver": driver_facts,
    "identity": identity_facts,
}


def main() -> None:
    name, *arguments = sys.argv[1:]
    facts = _tried(lambda: PROBES[name](*arguments))
    # On a line of its own, whatever a library has printed.
    sys.stdout.write(f"\n{json.dumps(facts)}\n")


def _tried(ask: Callable[[], Facts]) -> Facts:
    from ssd_aot.errors import SsdAotError

    try:
        return ask()
    except SsdAotError as error:
        place = f"{error.where}: " if error.where else ""
        found = f": {error.found}" if error.found else ""
        trouble = f"{place}{error.what}{found}"
        return {"trouble": trouble, "wanted": error.wanted, "mend": error.mend}
    except Exception as error:
        return {"trouble": f"{type(error).__name__}: {error}"}
