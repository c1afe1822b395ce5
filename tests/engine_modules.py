"""The engines' operation modules alone, for tests of their launches: no engine is installed.

`python tests/engine_modules.py` downloads SGLang's wheel and mamba_ssm's source archive and keeps
the modules of the operation in `.engines/`; with a name, that engine's alone (`vllm`, whose wheel
has 336 MB, is fetched only so). A folder elsewhere is named by `SSD_AOT_TEST_SGLANG` and so on;
TensorRT-LLM's modules come in no package and are read from such a folder only.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

PLACE = Path(__file__).parent.parent / ".engines"
FIXTURE = Path(__file__).parent / "fixture_engine"


@dataclass(frozen=True)
class Modules:
    """What is kept of a package, and what stands in for modules that the kept ones import and
    that no launch depends on."""

    requirement: str = ""
    kept: tuple[str, ...] = ()
    stand_ins: Mapping[str, str] = field(default_factory=dict)


MODULES = {
    "sglang": Modules(
        "sglang==0.5.23",
        ("sglang/kernels/ops/mamba/triton_ops/*.py", "sglang/kernels/ops/attention/fla/utils.py"),
        {
            "sglang/kernels/jit/utils.py": "def is_arch_support_pdl(): return False\n",
            "sglang/srt/utils/common.py": "torch_release = (2, 9)\n",
        },
    ),
    "mamba_ssm": Modules(
        "mamba_ssm==2.3.2.post1",
        ("mamba_ssm/ops/triton/*.py", "mamba_ssm/utils/*.py"),
    ),
    "tensorrt_llm": Modules(
        stand_ins={
            f"tensorrt_llm/_torch/{folder}/interface.py": "class AttentionMetadata: ...\n"
            for folder in ("attention_backend", "attention/backends")
        }
        | {
            "tensorrt_llm/_torch/pyexecutor/cuda_graph_runner.py": ""
            "CUDA_GRAPH_DUMMY_REQUEST_ID = 0\n",
            "tensorrt_llm/_utils.py": "copy_to_device_if_changed = prefer_pinned = None\n"
            "def is_sm_100f(): return False\n",
        },
    ),
    "vllm": Modules(
        "vllm==0.33.0",
        ("vllm/model_executor/layers/mamba/ops/*.py",),
        {
            "vllm/_custom_ops.py": "",
            "vllm/envs.py": "",
            "vllm/logger.py": "def init_logger(name): return None\n",
            "vllm/platforms/__init__.py": "import torch\n"
            "from vllm.platforms.interface import DeviceCapability, Platform\n"
            "class Here(Platform):\n"
            "    def get_device_capability(self, device_id=0):\n"
            "        return DeviceCapability(*torch.cuda.get_device_capability(device_id))\n"
            "_current_platform = None\n"
            "def __getattr__(name):\n"
            "    if name != 'current_platform': raise AttributeError(name)\n"
            "    return _current_platform or Here()\n",
            "vllm/platforms/interface.py": "from enum import Enum\n"
            "from typing import NamedTuple\n"
            "class PlatformEnum(Enum):\n    CUDA = 0\n"
            "class DeviceCapability(NamedTuple):\n    major: int\n    minor: int\n"
            "class Platform:\n"
            "    def is_cuda(self): return True\n"
            "    def is_device_capability(self, wanted):\n"
            "        found = self.get_device_capability()\n"
            "        return found == wanted or 10 * found[0] + found[1] == wanted\n"
            "    def __getattr__(self, name):\n"
            "        if not name.startswith('is_'): raise AttributeError(name)\n"
            "        return lambda *given: False\n",
            "vllm/triton_utils/__init__.py": "import triton\nimport triton.language as tl\n"
            "HAS_TRITON = True\n",
            "vllm/utils/platform_utils.py": "get_device_name_as_file_name = None\n",
            "vllm/v1/attention/backends/utils.py": "NULL_BLOCK_ID = 0\n",
        },
    ),
}


def engine_folder(name: str) -> Path | None:
    """The folder of an engine's operation modules, or None where there is none."""
    named = os.environ.get(f"SSD_AOT_TEST_{name.upper()}")
    folder = Path(named) if named else PLACE / name
    return folder if folder.is_dir() else None


@contextmanager
def importable(name: str, folder: Path, scratch: Path) -> Iterator[None]:
    """The modules can be imported until the end of the block, and are forgotten then; stand-ins
    are written to `scratch`."""
    for path, text in MODULES[name].stand_ins.items():
        place = scratch / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    before, modules = list(sys.path), set(sys.modules)
    sys.path[:0] = [str(folder), str(scratch)]
    try:
        yield
    finally:
        sys.path[:] = before
        for module in [m for m in sys.modules if m.partition(".")[0] == name]:
            if module not in modules:
                del sys.modules[module]


@contextmanager
def importable_engine(name: str, scratch: Path) -> Iterator[None]:
    """The engine's own modules; TensorRT-LLM's stand-in where none are named. The test is skipped
    where there are none."""
    import pytest

    folder = engine_folder(name)
    if folder is None:
        if name != "tensorrt_llm":
            pytest.skip(f"no modules of {name} here: python tests/engine_modules.py {name}")
        folder = FIXTURE
    with importable(name, folder, scratch):
        yield


def fetch(name: str) -> None:
    """Download an engine's package and keep its operation modules, unless they are there."""
    modules, place = MODULES[name], PLACE / name
    if place.exists():
        return
    PLACE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=PLACE) as scratch:
        # mamba_ssm's archive is asked for its metadata only; it is not built.
        unbuilt = {"MAMBA_SKIP_CUDA_BUILD": "TRUE", "MAMBA_FORCE_BUILD": "TRUE"}
        command = ["download", "--quiet", "--no-deps", "--no-build-isolation", "--dest", scratch]
        subprocess.run(
            [sys.executable, "-m", "pip", *command, modules.requirement],
            check=True,
            env=os.environ | unbuilt,
        )
        kept = Path(scratch) / "kept"
        for path, content in _members(next(Path(scratch).glob("*.*"))):
            if any(PurePosixPath(path).match(pattern) for pattern in modules.kept):
                (kept / path).parent.mkdir(parents=True, exist_ok=True)
                (kept / path).write_bytes(content)
        kept.rename(place)


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                yield name, wheel.read(name)
        return
    with tarfile.open(archive) as source:
        for member in source:
            content = source.extractfile(member)
            if content is not None:
                # The first folder carries the release's name.
                yield member.name.partition("/")[2], content.read()


if __name__ == "__main__":
    for engine in sys.argv[1:] or ("sglang", "mamba_ssm"):
        fetch(engine)
