"""A program of five kinds of kernels, recorded on this GPU, built, and served without a compiler.

SSD_AOT_TEST_RECORDED names a bundle that was built of its recording elsewhere, without a GPU; else
it is built here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
PROGRAM = ROOT / "tests" / "recorded_program"


def ended(*command: str | Path, cwd: Path = PROGRAM, **environment: str) -> str:
    process = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def recorded(folder: Path) -> Path:
    out = folder / "server.yaml"
    said = ended(
        "-m", "ssd_aot.cli", "record", "--out", out, "--", sys.executable, PROGRAM / "server.py",
        "spawn", TRITON_CACHE_DIR=str(folder / "recorded"),
    )  # fmt: skip
    compiled, _ = json.loads(said.splitlines()[0])
    assert len(compiled) == 9
    return out


def test_a_recorded_program_runs_from_its_bundle_without_a_compilation(tmp_path: Path) -> None:
    spec = recorded(tmp_path)
    bundle = Path(os.environ.get("SSD_AOT_TEST_RECORDED", tmp_path / "bundle"))
    if not bundle.exists():
        ended("-m", "ssd_aot.cli", "build", "--spec", spec, "--out", bundle)
    for how in ("here", "spawn"):
        for more in ((), ("warm",)):
            said = ended(
                PROGRAM / "server.py", how, bundle, *more,
                PATH=str(tmp_path), TRITON_CACHE_DIR=str(tmp_path / f"{how}{len(more)}"),
            )  # fmt: skip
            compiled, status = json.loads(said)
            found: dict[str, Any] = status
            assert compiled == [len(more)], "kernels that were there before the first launch"
            assert found["misses"] == {}
            assert found["hits"]["of_a_function"] == 2
