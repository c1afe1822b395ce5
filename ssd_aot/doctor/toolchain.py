"""Python, torch, Triton and the assemblers: what building needs, and what of it serving needs."""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator

from ssd_aot.doctor.diagnosis import Item
from ssd_aot.doctor.probing import Probed
from ssd_aot.targets import TARGETS

TRITON_RELEASES = ((3, 6), (3, 9))
"""The oldest and the newest release that `triton_compat` was read and run with."""

_COMPILED = "install triton, or measure here with tune --compiled what another host compiled"


def toolchain_items(torch: Probed, triton: Probed) -> Iterator[Item]:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    yield Item("ok", "python", f"{python}, {sys.platform} {platform.machine()}")
    yield from _torch(torch)
    if triton.trouble:
        yield Item("lacking", "triton", "cannot be imported", triton.trouble, _releases(),
                   _COMPILED, ("build", "tune"))  # fmt: skip
        return
    yield from _triton(triton)
    yield from _assemblers(triton)
    yield from _layout(triton.part("layout"))


def _torch(torch: Probed) -> Iterator[Item]:
    if torch.trouble:
        yield Item("lacking", "torch", "cannot be imported", torch.trouble, "torch 2.9 or newer",
                   "install torch", ("build", "tune", "serve"))  # fmt: skip
    elif torch.facts["cuda"]:
        yield Item("ok", "torch", f"{torch.facts['version']}, for CUDA {torch.facts['cuda']}")
    else:
        yield Item("lacking", "torch", "is a build without CUDA", torch.facts["version"],
                   "a torch for CUDA; building does without", "install torch for CUDA",
                   ("tune", "serve"))  # fmt: skip


def _triton(triton: Probed) -> Iterator[Item]:
    version = str(triton.facts["version"])
    numbers = re.match(r"(\d+)\.(\d+)", version)
    release = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    oldest, newest = TRITON_RELEASES
    if oldest <= release <= newest:
        yield Item("ok", "triton", version)
    else:
        yield Item("lacking", "triton", "is of another release", version, _releases(),
                   "install one of these", ("build", "tune"))  # fmt: skip
    identity = triton.part("identity")
    if identity.trouble:
        yield Item("lacking", "triton identity", "cannot be read, so nothing is compiled",
                   identity.trouble, "all of Triton's files, readable",
                   identity.mend or "install triton anew", ("build", "tune"))  # fmt: skip
    else:
        yield Item("ok", "triton identity", f"{identity.facts['content'][:16]}…, by content")


def _assemblers(triton: Probed) -> Iterator[Item]:
    versions = triton.part("assemblers")
    names: dict[str, list[str]] = {}
    for target in TARGETS:
        names.setdefault(target.arch, []).append(target.name)
    answers = {arch: Probed.of(triton.facts["architectures"].get(arch)) for arch in names}
    known = [arch for arch, answer in answers.items() if not answer.trouble]
    told = versions.facts.get("versions", "") if not versions.trouble else ""
    if known:
        yield Item("ok", "ptxas", f"{told or 'found'}; knows {', '.join(known)}")
    for arch, answer in answers.items():
        if answer.trouble:
            # Where some architectures are known, building goes on for their GPUs.
            what = f"cannot build for {', '.join(names[arch])} ({arch})"
            yield Item("lacking" if not known else "note", "ptxas", what, answer.trouble,
                       answer.wanted, answer.mend, () if known else ("build", "tune"))  # fmt: skip


def _layout(layout: Probed) -> Iterator[Item]:
    if not layout.trouble and layout.facts["fixed"]:
        yield Item("ok", "address layout", "can be fixed, so builds are reproducible")
        return
    yield Item(
        "note", "address layout",
        "cannot be fixed: code for sm_100 and later may have another digest in another build",
        layout.trouble or "personality(ADDR_NO_RANDOMIZE) is refused", "",
        "allow the system call personality, in a container with a seccomp profile that has it or "
        "--security-opt seccomp=unconfined",
    )  # fmt: skip


def _releases() -> str:
    (_, oldest), (major, newest) = TRITON_RELEASES
    return f"triton {major}.{oldest} to {major}.{newest}"
