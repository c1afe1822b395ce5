"""The keys computed at build are those that Triton itself looks up, for every release supported.

`make releases` puts the releases that are not installed in `.triton/VERSION`; a release that is
missing there is skipped. torch asks for one release alone, and is imported beside any of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import pytest
from command_line import ROOT
from driver_library import driver_library
from triton_releases import RELEASES, release_folder

from ssd_aot.bundle.store import Bundle

TESTS = Path(__file__).parent

SERVE = """
import json, sys
from pathlib import Path
import ssd_aot, triton
from engine_bundles import EVEN, ODD, scan, serving
from serving_driver import ServingDriver, TritonsLauncher
from triton import knobs
from triton.backends.nvidia.driver import CudaUtils

bundle, warm = Path(sys.argv[1]), sys.argv[2] == "warm"
heard = []
with serving() as (op, driver):
    knobs.compilation.listener = lambda cache_hit, **_: heard.append(cache_hit)
    ServingDriver.launcher_cls = TritonsLauncher
    ssd_aot.load(bundle, strict=True, warm=warm)
    CudaUtils()
    after_load = len(heard)
    for signature in (EVEN, ODD, EVEN):
        scan(op, signature)
status = ssd_aot.status()
print(json.dumps({"version": triton.__version__, "heard": heard, "after_load": after_load,
                  "loaded": len(driver.loaded), **status}))
"""


BY_HAND = """
import json
import triton
from signature_builders import signature
from ssd_aot.candidates import BY_HAND, candidates
from ssd_aot.launches import Variant
from ssd_aot.layouts import FormRule
from ssd_aot.sources.builtin import enumerate_launches, kernel_reference
from ssd_aot.targets import target
from ssd_aot.triton_compat import compile_variant, kernel_function

h200, found = target("h200"), {}
for launch in enumerate_launches(signature(nheads=16, ngroups=1), FormRule.for_gpu(132)):
    for configuration in candidates(launch, h200):
        if BY_HAND in dict(configuration.constexprs) and launch.kernel not in found:
            function = kernel_function(kernel_reference(launch.kernel, configuration))
            made = compile_variant(function, Variant(launch, configuration), h200)
            found[launch.kernel] = made.code.spill_bytes
print(json.dumps({"version": triton.__version__, "spills": found}))
"""


@dataclass(frozen=True)
class Release:
    """A release with the bundle that was built under it."""

    version: str
    folder: Path | None
    bundle: Path

    def run(self, *arguments: str, **environment: str) -> str:
        """What Python prints, with this Triton before all others and no compiler on PATH."""
        places = [self.folder, ROOT, TESTS] if self.folder else [ROOT, TESTS]
        ended = subprocess.run(
            [sys.executable, "-W", "ignore", *arguments],
            env={"PYTHONPATH": ":".join(map(str, places)), **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout


@pytest.fixture(scope="module", params=RELEASES)
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Release:
    version = request.param
    folder = release_folder(version)
    if folder is not None and not folder.is_dir():
        pytest.skip(f"Triton {version} is not in {folder}: make releases")
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen") else base
    made = Release(version, folder, shared / f"triton-{version}" / "h200")
    with filelock.FileLock(shared / f"triton-{version}.lock"):
        if not made.bundle.exists():
            made.run(str(TESTS / "engine_bundles.py"), str(made.bundle), PATH=os.environ["PATH"])
    return made


@pytest.mark.parametrize("start", ["cold", "warm"])
def test_strictly_served_nothing_is_compiled_tuned_or_missed(
    release: Release, start: str, tmp_path: Path
) -> None:
    library = driver_library(release.bundle, tmp_path)

    told: dict[str, Any] = json.loads(
        release.run(
            "-c", SERVE, str(release.bundle), start, PATH="/nowhere", LD_LIBRARY_PATH=str(library)
        )
    )

    assert told["version"] == release.version
    assert told["heard"] == [True] * 11
    assert told["after_load"] == (11 if start == "warm" else 0)
    assert told["loaded"] == 11
    assert told["misses"] == {}
    assert sum(n for name, n in told["hits"].items() if name.endswith(".autotune.json")) == 4
    modules = {name.partition(".")[0]: n for name, n in told["hits"].items() if ".so" in name}
    launchers = {"__triton_launcher": 11} if release.version == "3.6.0" else {}
    assert modules == {"cuda_utils": 1, **launchers}


def test_a_launcher_for_each_signature_is_there_where_triton_builds_them(release: Release) -> None:
    """3.6.0 keys each by its source; what later releases build is one module for all kernels."""
    files = Bundle.open(release.bundle).manifest.triton
    assert files is not None

    launchers = [m for m in files.host_modules if m.name == "__triton_launcher"]

    assert len(launchers) == (5 if release.version == "3.6.0" else 0)
    assert all(module.keys for module in launchers)
    assert len({module.source_sha256 for module in launchers}) == len(launchers)


def test_the_kernels_written_by_hand_compile_with_few_spills(release: Release) -> None:
    """Gluon is young, and what it offers is called otherwise from release to release. 3.9.0 spills
    100 bytes, the others none."""
    told: dict[str, Any] = json.loads(release.run("-c", BY_HAND, PATH=os.environ["PATH"]))

    assert told["version"] == release.version
    assert told["spills"].keys() == {"scan", "segment_states"}
    assert max(told["spills"].values()) <= (128 if release.version == "3.9.0" else 0)
