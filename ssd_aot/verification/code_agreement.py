"""Whether each code object of a bundle is what the manifest says of it, by its own ELF file.

A cubin tells its architecture, the kernels in it, their code, registers a thread, threads a block,
and the size of each parameter. So objects put in one another's place are found where they differ
in one of these. What a cubin does not tell cannot be found: how much dynamic shared memory the
kernel uses (a wrong size is found only above the target's limit), and which constexprs and
alignments it was compiled for. In the bundle of the default spec for an H200, of the 1824 pairs of
objects of one kernel 729 differ in nothing that is told. A change made by whoever also rewrote the
manifest and its checksum is ruled out by the digest alone, and wrong results by running.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ssd_aot.bundle.cubin import INSTRUCTION_BYTES, KernelFacts, kernels_in
from ssd_aot.bundle.elf import cubin_architecture, same_architecture
from ssd_aot.bundle.manifest import CodeObject, TargetEntry, VariantEntry
from ssd_aot.bundle.store import Bundle
from ssd_aot.errors import BundleError
from ssd_aot.verification.findings import Finding

_MEND = "build the bundle anew"
_THREADS_A_WARP = 32
_POINTER_BYTES = 8
_BYTES = {"i32": 4, "u32": 4, "fp32": 4, "i64": 8, "u64": 8, "fp64": 8}
"""Sizes of scalar parameters; one of another type is not alike."""


@dataclass(frozen=True)
class _Disagreement:
    check: str
    what: str
    found: str
    wanted: str


def code_findings(bundle: Bundle) -> Iterator[Finding]:
    """A finding for each disagreement of an object with the variants that use it, and for each of
    the two checks, `architecture` and `code`, one that counts what agrees."""
    targets = {target.name: target for target in bundle.manifest.targets}
    users: dict[tuple[str, str], list[VariantEntry]] = {}
    for entry in bundle.manifest.variants:
        users.setdefault((entry.object.sha256, entry.target), []).append(entry)
    agreed = {"architecture": 0, "code": 0}
    unread = 0
    for (_, name), entries in users.items():
        try:
            data = bundle.read_object(entries[0])
        except BundleError:
            unread += 1  # `files` has told of it
            continue
        found = list(_disagreements(data, entries, targets[name]))
        for check in agreed:
            agreed[check] += all(one.check != check for one in found)
        names = ", ".join(entry.name for entry in entries)
        for one in found:
            what = f"{entries[0].object.path}, code of {names}, {one.what}"
            yield Finding("failed", one.check, what, one.found, one.wanted, _MEND)
    for check, says in (
        ("architecture", "are for their target by their ELF header"),
        ("code", "hold the kernel that the manifest tells, by name, registers and parameters"),
    ):
        if agreed[check]:
            yield Finding("ok", check, f"{agreed[check]} of {len(users)} code objects {says}")
        if unread:
            what = f"{unread} of {len(users)} code objects cannot be read"
            yield Finding("not checked", check, what)


def _disagreements(
    data: bytes, entries: list[VariantEntry], target: TargetEntry
) -> Iterator[_Disagreement]:
    code, wanted = entries[0].object, target.arch
    try:
        found = cubin_architecture(data)
        if not (same_architecture(found, wanted) and same_architecture(code.arch, wanted)):
            told = f"{found} in its ELF header, {code.arch} in the manifest"
            what = "is for another architecture"
            yield _Disagreement("architecture", what, told, f"{wanted} for {target.name}")
    except BundleError as error:
        yield _Disagreement("architecture", f"is {error.what}", error.found, error.wanted)
        return
    try:
        kernels = kernels_in(data)
    except BundleError as error:
        yield _Disagreement("code", f"is {error.what}", error.found, error.wanted)
        return
    facts = kernels.get(code.function)
    if facts is None:
        names = ", ".join(kernels) or "no kernel"
        yield _Disagreement("code", "has no kernel of the manifest's name", names, code.function)
    else:
        yield from _of_kernel(facts, code)
    if code.shared_bytes > target.shared_bytes_optin:
        limit = f"at most {target.shared_bytes_optin} bytes for {target.name}"
        what = "is said to need more shared memory than its target allows"
        yield _Disagreement("code", what, f"{code.shared_bytes} bytes", limit)
    for entry in entries:
        yield from _of_variant(entry, code)


def _of_kernel(facts: KernelFacts, code: CodeObject) -> Iterator[_Disagreement]:
    if not facts.code:
        yield _Disagreement("code", "has a kernel without code", "no instruction", "some")
    elif _has_gap(facts.code):
        what = "has a kernel with a gap in its code"
        yield _Disagreement("code", what, "an instruction that is all zero", "none")
    if facts.registers != code.registers:
        what = "has other registers a thread"
        yield _Disagreement("code", what, str(facts.registers), str(code.registers))
    threads = code.num_warps * _THREADS_A_WARP
    if facts.threads not in (0, threads):
        yield _Disagreement("code", "has other threads a block", str(facts.threads), str(threads))
    # The last two are the pointers to scratch memory that Triton appends.
    sizes = (*(_size(kind) for _, kind in code.parameters), _POINTER_BYTES, _POINTER_BYTES)
    alike = all(
        wanted in (None, found) for found, wanted in zip(facts.parameter_bytes, sizes, strict=False)
    )
    if len(facts.parameter_bytes) != len(sizes) or not alike:
        what = "takes other parameters than the manifest has"
        yield _Disagreement("code", what, _spelled(facts.parameter_bytes), _spelled(sizes))


def _of_variant(entry: VariantEntry, code: CodeObject) -> Iterator[_Disagreement]:
    """What the manifest says of an object, against itself."""
    if entry.object != code:
        differ = [name for name in vars(code) if vars(code)[name] != vars(entry.object)[name]]
        what = "is told of in two ways"
        yield _Disagreement("code", what, f"two values of {', '.join(differ)}", "one of each")
    leaves = [leaf for argument in entry.launch.arguments for leaf in argument.leaves]
    wanted = {a.name: a.type for a in leaves if a.type != "none" and a.type[0] != "="}
    given = dict(code.parameters)
    # Triton makes an argument that is 1 a constant unless its type is annotated.
    ones = {a.name for a in leaves if a.specialisation == "==1"}
    differ = [
        name for name in sorted(wanted.keys() | given.keys())
        if given.get(name) != wanted.get(name) and (name in given or name not in ones)
    ]  # fmt: skip
    if differ:
        found = ", ".join(f"{name} {given.get(name, 'left out')}" for name in differ)
        launched = ", ".join(f"{name} {wanted.get(name, 'left out')}" for name in differ)
        what = "takes other parameters than the launch has"
        yield _Disagreement("code", what, found, launched)


def _has_gap(code: bytes) -> bool:
    """Whether an instruction is all zero, which none of any architecture is."""
    nothing = bytes(INSTRUCTION_BYTES)
    steps = range(0, len(code), INSTRUCTION_BYTES)
    return nothing in code and any(code[at : at + INSTRUCTION_BYTES] == nothing for at in steps)


def _size(kind: str) -> int | None:
    return _POINTER_BYTES if kind.startswith("*") else _BYTES.get(kind)


def _spelled(sizes: Sequence[int | None]) -> str:
    return f"{len(sizes)}, of {' '.join(str(size or '?') for size in sizes)} bytes"
