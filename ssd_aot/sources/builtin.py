"""The builtin source: which kernels are its own, and the keys its launcher can ask for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from importlib import resources

from ssd_aot.candidates import BY_HAND
from ssd_aot.launches import Configuration, Launch, canonical_json
from ssd_aot.layouts import SHORT_WORK, Form, FormRule, ScanLayout
from ssd_aot.operation import launches
from ssd_aot.signatures import Signature
from ssd_aot.sources.batches import cut_lengths, longest_length

MODULES = {
    "decay": "ssd_aot.kernels.decay",
    "segment_states": "ssd_aot.kernels.segments",
    "state_passing": "ssd_aot.kernels.segments",
    "scan": "ssd_aot.kernels.scan",
}


GLUON_MODULES = {
    "segment_states": "ssd_aot.kernels.hopper_segments",
    "scan": "ssd_aot.kernels.hopper_scan",
}
"""Of configurations with `BY_HAND`."""


def kernel_reference(kernel: str, configuration: Configuration) -> str:
    """Where the Triton function of a kernel in a configuration is, as `module:function`."""
    by_hand = any(name == BY_HAND for name, _ in configuration.constexprs)
    return f"{(GLUON_MODULES if by_hand else MODULES)[kernel]}:{kernel}"


SOURCE_FOLDERS = ("kernels", "ops", "sources")
SOURCE_MODULES = (
    "candidates.py",
    "launches.py",
    "layouts.py",
    "operation.py",
    "problems.py",
    "tracing.py",
)


def source_hashes() -> tuple[tuple[str, str], ...]:
    """(module, sha256 of its text) of all that decides the code objects, sorted: the kernels, and
    what describes, traces and configures their launches."""
    package = resources.files("ssd_aot")
    files = {name: package / name for name in SOURCE_MODULES}
    for folder in SOURCE_FOLDERS:
        for entry in (package / folder).iterdir():
            if entry.name.endswith(".py"):
                files[f"{folder}/{entry.name}"] = entry
    return tuple(
        (name, hashlib.sha256(file.read_bytes()).hexdigest())
        for name, file in sorted(files.items())
    )


def kernel_sources(
    modules: Iterable[tuple[str, str]] | None = None,
) -> tuple[tuple[str, str], ...]:
    """(kernel, sha256 over its module and the modules that all kernels share), sorted: what a
    tuning record's measurements of the kernel stand on. `modules` are hashes as `source_hashes`
    gives them, such as a bundle's own; those of this package unless given."""
    given = source_hashes() if modules is None else modules
    hashes = {name: sha256 for name, sha256 in given if name.startswith("kernels/")}
    own = {
        kernel: [_file_of(modules[kernel]) for modules in (MODULES, GLUON_MODULES)
                 if kernel in modules]
        for kernel in MODULES
    }  # fmt: skip
    apart = {file for files in own.values() for file in files}
    shared = {name: sha256 for name, sha256 in hashes.items() if name not in apart}
    return tuple(
        (kernel, hashlib.sha256(canonical_json(shared | _of(files, hashes)).encode()).hexdigest())
        for kernel, files in sorted(own.items())
    )


def _file_of(module: str) -> str:
    return f"kernels/{module.rpartition('.')[2]}.py"


def _of(files: Iterable[str], hashes: Mapping[str, str]) -> dict[str, str]:
    return {file: hashes[file] for file in files if file in hashes}


BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


def enumerate_launches(signature: Signature, rule: FormRule) -> tuple[Launch, ...]:
    """The launches the launcher can ask for under a signature, from the signature alone.

    Tracing the operations yields the same set; a test holds the two equal.
    """
    found: dict[Launch, None] = {}
    for layout in _layouts(signature):
        for form in _forms(signature, layout, rule):
            found.update(dict.fromkeys(launches(layout, form)))
    return tuple(found)


def _forms(signature: Signature, layout: ScanLayout, rule: FormRule) -> list[Form]:
    """The forms that some batch of the signature runs in."""
    if layout.chunk_states:
        return ["segments"]
    forms: list[Form] = ["walk"]
    fewest = signature.num_seqs[0]
    most = longest_length(signature, fewest) * fewest
    cut = sum(cut_lengths(signature, fewest, rule.walk_tokens + 1))
    if fewest * signature.nheads >= rule.walk_programs or cut > most:
        return forms
    if cut * signature.nheads <= SHORT_WORK:
        forms.append("short_segments")
    if most * signature.nheads > SHORT_WORK:
        forms.append("segments")
    return forms


def _layouts(signature: Signature) -> tuple[ScanLayout, ...]:
    s = signature
    types: dict[str, str] = {
        "x": s.dtype,
        "dt": s.dt_dtype,
        "A": "fp32",
        "B": s.dtype,
        "C": s.dtype,
    }
    if s.D != "none":
        types["D"] = s.param_dtype
    if s.z:
        types["z"] = s.dtype
    if s.dt_bias:
        types["dt_bias"] = s.param_dtype
    types["out"] = s.dtype
    if s.has_initstates:
        types["initial_states"] = s.state_dtype
    if s.is_cont_batched:
        types["spans"] = "i32"
    if s.seq_idx:
        types["seq_idx"] = "i32"
    final: dict[str, str] = {"final_states": s.state_dtype}
    if s.intermediate_states:
        outputs: list[dict[str, str]] = [{"chunk_states": s.state_dtype, "last_chunks": "i32"}]
    elif s.is_cont_batched:
        outputs = [final]
    else:
        outputs = [final, {}]
    forms: dict[str, int] = {"none": 0, "head": 1, "headdim": 2}
    return tuple(
        ScanLayout(
            nheads=s.nheads,
            headdim=s.headdim,
            dstate=s.dstate,
            ngroups=s.ngroups,
            types=tuple((types | output).items()),
            strides=(),
            aligned=aligned,
            packed=s.is_cont_batched,
            d_form=forms[s.D],  # type: ignore[arg-type]
            dt_softplus=s.dt_softplus,
            dt_limit=(0.0, float("inf")),
        )
        for output in outputs
        for aligned in _alignments(s)
    )


def _alignments(s: Signature) -> tuple[bool, ...]:
    """Whether all vectors of a call start on 16 bytes and 16 elements: always, never, or as the
    call happens to be.

    Views without alignment to rely on have some by chance: of one token, a row's stride is that of
    its heads. And the slots of a state cache in pages are apart by the convolution's state too, a
    number of columns that changes with the speculative tokens.
    """
    if s.headdim % 16 or s.dstate % 16:
        return (False,)
    if s.layout == "unaligned":
        return (False, True)
    column_bytes = (s.nheads * s.headdim + 2 * s.ngroups * s.dstate) * BYTES[s.dtype]
    pages = s.is_cont_batched and not s.intermediate_states
    return (True, False) if pages and column_bytes % (16 * BYTES[s.state_dtype]) else (True,)
