"""Builders of small manifests and bundles for the tests: right in form, with code that is none."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cubin_builders import fake_cubin

from ssd_aot.bundle.manifest import (
    CodeObject,
    Manifest,
    Source,
    TargetEntry,
    Toolchain,
    Tuning,
    VariantEntry,
)
from ssd_aot.bundle.store import Bundle
from ssd_aot.bundle.writer import BundleWriter
from ssd_aot.launches import Argument, Configuration, Launch
from ssd_aot.signatures import Signature

H100 = TargetEntry("h100", "sm_90a", (9, 0), 232448, 132, 264, 256)
H200 = TargetEntry("h200", "sm_90a", (9, 0), 232448, 132, 264, 256)
B200 = TargetEntry("b200", "sm_100a", (10, 0), 232448, 148, 296, 256)

TOOLCHAIN = Toolchain(
    triton_version="3.7.1",
    triton_content="c" * 64,
    ptxas_version="12.8.93",
    python_abi="cpython-311-x86_64-linux-gnu",
    platform="linux-x86_64",
    environment=(("TRITON_ENABLE_ASAN", "0"),),
)


def signature(model: str = "tiny", tp: int = 1, **fields: Any) -> Signature:
    given: dict[str, Any] = {
        "model": model, "tp": tp, "nheads": 8, "headdim": 64, "dstate": 128, "ngroups": 1,
        "conv_kernel": 4, "dtype": "bf16", "dt_dtype": "bf16", "param_dtype": "fp32",
        "state_dtype": "fp32", "chunk_size": 128, "has_initstates": True,
        "is_cont_batched": True, "num_seqs": (1, 1), "max_num_batched_tokens": 8192, "D": "head",
        "z": False, "dt_bias": True, "dt_softplus": True, "seq_idx": False,
        "intermediate_states": False, "layout": "engine", "lengths": "any", **fields,
    }  # fmt: skip
    return Signature(**given)


def launch(kernel: str = "chunk_scan", **constexprs: Any) -> Launch:
    return Launch(
        kernel=kernel,
        constexprs=tuple(constexprs.items()) or (("HEADDIM", 64),),
        arguments=(
            Argument("x", "*bf16", "aligned"),
            Argument("dt", "*bf16", "unaligned"),
            Argument("seqlen", "i32", "%16"),
            Argument("z", "none"),
        ),
        options=(("enable_fp_fusion", True),),
    )


def code_object(data: bytes, arch: str, **fields: Any) -> CodeObject:
    given: dict[str, Any] = {
        "sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data),
        "function": "chunk_scan", "arch": arch, "num_warps": 4, "num_ctas": 1,
        "shared_bytes": 49152, "registers": 128, "spill_bytes": 0, "global_scratch_bytes": 0,
        "profile_scratch_bytes": 0, "launch_pdl": False, "launch_cooperative": False,
        "parameters": (("x", "*bf16"), ("dt", "*bf16"), ("seqlen", "i32")), **fields,
    }  # fmt: skip
    return CodeObject(**given)


def variant(
    data: bytes,
    *,
    target: TargetEntry = H100,
    launch: Launch = launch(),  # noqa: B008 - frozen
    signatures: Sequence[str] = (),
    tuning: Tuning = Tuning("default"),  # noqa: B008 - frozen
    **fields: Any,
) -> VariantEntry:
    return VariantEntry(
        target=target.name,
        launch=launch,
        configuration=Configuration((("BLOCK_M", 64),), num_warps=4, num_stages=2),
        object=code_object(data, target.arch, **fields),
        tuning=tuning,
        signatures=tuple(signatures),
    )


def manifest(
    variants: Sequence[VariantEntry],
    signatures: Sequence[Signature],
    *,
    targets: Sequence[TargetEntry] = (H100,),
    files: Sequence[tuple[str, str, int]] | None = None,
    source: str = "builtin",
) -> Manifest:
    """A manifest that lists the variants' own code objects unless `files` are given."""
    own = {(v.object.path, v.object.sha256, v.object.size_bytes) for v in variants}
    return Manifest(
        spec={"version": 1, "models": {"tiny": {"nheads": 8}}},
        spec_digest="5" * 64,
        signatures=tuple((s.id, s.to_json()) for s in signatures),
        source=Source(source, "0.1.0", (("chunk_scan", "a" * 64), ("chunk_state", "b" * 64))),
        launch_abi="1" * 64,
        toolchain=TOOLCHAIN,
        targets=tuple(targets),
        variants=tuple(variants),
        missing=(),
        files=tuple(sorted(own if files is None else files)),
    )


def small_manifest(*, source: str = "builtin") -> tuple[Manifest, dict[str, bytes]]:
    """Two kernels for two targets and two signatures, and a file beside the code objects; with
    the content of every file by path."""
    signatures = [signature(tp=1), signature(tp=2)]
    ids = [s.id for s in signatures]
    entries, contents = [], {"notes/origin.txt": b"from the tests\n"}
    for number, target in ((90, H100), (100, B200)):
        for kernel in ("chunk_state", "chunk_scan"):
            data = fake_cubin(number, function=kernel)
            entry = variant(
                data, target=target, launch=launch(kernel), signatures=ids, function=kernel
            )
            entries.append(entry)
            contents[entry.object.path] = data
    files = [(p, hashlib.sha256(d).hexdigest(), len(d)) for p, d in contents.items()]
    made = manifest(entries, signatures, targets=(H100, B200), files=files, source=source)
    return made, contents


def write_small_bundle(path: Path, *, source: str = "builtin", **changes: Any) -> Bundle:
    """`small_manifest` as a bundle at `path`, with fields of the manifest replaced."""
    made, contents = small_manifest(source=source)
    return write_bundle(path, replace(made, **changes), contents)


def write_bundle(path: Path, made: Manifest, contents: dict[str, bytes]) -> Bundle:
    writer = BundleWriter(path)
    for name, data in contents.items():
        writer.add_file(name, data)
    writer.commit(made)
    return Bundle.open(path)


def large_manifest(variants: int, signatures_each: int = 40) -> Manifest:
    """As many variants as asked, with as many arguments as a real kernel has."""
    signatures = [signature(tp=tp, nheads=tp) for tp in range(1, signatures_each + 1)]
    ids = [s.id for s in signatures]
    arguments = tuple(Argument(f"stride_{i}", "i64", "%16") for i in range(30))
    entries = []
    for index in range(variants):
        call = replace(launch(HEADDIM=index, CHUNK=128, HAS_Z=False), arguments=arguments)
        entries.append(
            variant(
                fake_cubin(90, str(index).encode()),
                launch=call,
                signatures=ids,
                parameters=tuple((a.name, a.type) for a in arguments),
            )
        )
    return manifest(entries, signatures)
