"""The assembler that Triton will run for an architecture, and whether it knows it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from triton.backends.nvidia.compiler import get_ptxas

from ssd_aot.errors import HostError
from ssd_aot.targets import Target

# The first CUDA release whose ptxas assembles for each architecture: release notes of the PTX
# ISA, table "PTX Release History" (PTX 7.0, 7.8, 8.0, 8.6/8.7, 8.8).
_FIRST_RELEASE = {
    80: (11, 0),
    86: (11, 1),
    89: (11, 8),
    90: (12, 0),
    100: (12, 8),
    103: (12, 9),
    120: (12, 8),
    121: (12, 9),
}


_PATH_VARIABLES = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")


def check_ptxas(target: Target) -> None:
    """Raises HostError when the ptxas that Triton will run is missing or too old for `target`."""
    number = target.compute_capability
    tool = _ptxas_for(number)
    wanted = _FIRST_RELEASE.get(number)
    found = tuple(int(part) for part in tool.version.split("."))
    if wanted is None or found >= wanted:
        return
    release = ".".join(map(str, wanted))
    chosen = next((name for name in _PATH_VARIABLES if os.environ.get(name) == tool.path), None)
    raise HostError(
        f"ptxas is too old for {target.arch}",
        where=str(tool.path),
        found=f"release {tool.version}",
        wanted=f"release {release} or newer, for {target.name} ({target.arch})",
        mend=f"unset {chosen} to use the ptxas that comes with Triton"
        if chosen
        else f"set {_path_variable(tool.path)} to the ptxas of CUDA {release} or newer",
    )


def ptxas_versions() -> str:
    """The releases of both assemblers, `ptxas 12.8.93, ptxas-blackwell 13.1.80`.

    Raises HostError when one cannot be run.
    """
    return f"ptxas {_exact(_ptxas_for(80))}, ptxas-blackwell {_exact(_ptxas_for(100))}"


def _ptxas_for(number: int) -> Any:
    """The tool for an architecture number, with `path` and `version` ("12.8").

    `get_ptxas` picks `ptxas-blackwell` from 100 on (3.6.0, 3.7.1, 3.8.0) or from 90 on (3.9.0),
    heeds the two path variables, and falls back to Triton's own where theirs cannot be run.
    """
    try:
        return get_ptxas(number)
    except (RuntimeError, OSError) as error:
        raise HostError(
            "ptxas cannot be run",
            found=str(error),
            mend=f"install the triton wheel anew, or set {' and '.join(_PATH_VARIABLES)}",
        ) from error


def _exact(tool: Any) -> str:
    answer = subprocess.run([tool.path, "--version"], capture_output=True, text=True, check=False)
    exact = re.search(r"\bV(\d+\.\d+\.\d+)", answer.stdout)
    return exact.group(1) if exact else str(tool.version)


def _path_variable(path: str) -> str:
    return _PATH_VARIABLES[Path(path).name == "ptxas-blackwell"]
