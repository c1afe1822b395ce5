"""One variant to one cubin, from explicit types: no GPU, no driver, nothing of the user's cache."""

from __future__ import annotations

import hashlib
import io
import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDAOptions
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime.cache import triton_key
from triton.runtime.driver import driver as driver_slot

from ssd_aot.bundle.elf import cubin_architecture, same_architecture
from ssd_aot.bundle.manifest import CodeObject
from ssd_aot.errors import BuildError
from ssd_aot.launches import Argument, Constant, Variant
from ssd_aot.targets import Target
from ssd_aot.triton_compat.assembly import Assembler, assembling
from ssd_aot.triton_compat.host_modules import HostSource

_DIVISIBLE_BY_16 = [["tt.divisibility", 16]]
_TENSOR_MEMORY_COLUMNS = 512
"""Columns of tensor memory a block may use: `CompiledKernel._init_handles` (3.6.0 to 3.9.0)."""
_REASON_CHARACTERS = 4000


@dataclass(frozen=True)
class CompiledObject:
    """A cubin and what the manifest says about it."""

    cubin: bytes
    code: CodeObject
    metadata: bytes = b""
    """Triton's own JSON about it, where the code is for Triton's cache."""
    launcher: HostSource | None = None
    """The extension module that launches it, where Triton needs one of its own."""


@dataclass(frozen=True)
class _Signature:
    """A variant in the form that `triton.compiler.ASTSource` takes."""

    types: dict[str, str]
    constants: dict[tuple[int, ...], Constant]
    attributes: dict[tuple[int, ...], list[list[Any]]]
    parameters: tuple[tuple[str, str], ...]


class _TargetOnlyDriver:
    """What Triton asks while it compiles is the target; anything else would be a GPU's answer."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        return self._target


def compile_variant(function: Any, variant: Variant, target: Target) -> CompiledObject:
    """Compiles `function` (a `triton.JITFunction`) for `target`, whatever machine this is.

    The cubin has no line tables and no path inside, and the same inputs give the same bytes where
    `layout_can_be_fixed`.
    Raises BuildError when Triton or ptxas fails, or when the launcher could not launch the result.
    OSError (a full disk) and MemoryError pass through: they say nothing about the variant.
    """
    signature = _signature(function, variant)
    number = target.compute_capability
    options = launch_options(variant, number)
    gpu = GPUTarget("cuda", number, 32)
    try:
        # Triton prints the whole PTX when ptxas fails; the reason is in the exception as well.
        with alone(gpu) as assembler, redirect_stdout(io.StringIO()):
            make_source = GluonASTSource if function.is_gluon() else ASTSource
            source = make_source(
                function, signature.types, signature.constants, signature.attributes
            )
            kernel = triton.compile(source, target=gpu, options=options)
    except (OSError, MemoryError):
        raise
    except Exception as error:
        raise BuildError(
            "the kernel does not compile",
            where=f"{variant.launch.kernel} [{variant.configuration}] for {target.arch}",
            found=reason_of(error),
        ) from error
    return described_object(kernel, assembler.log, signature.parameters, variant, target)


def warm_up() -> None:
    """Works out what Triton keeps once a process, so that forked workers find it done.

    `triton.compile` names its cache entry by `triton_key`, a hash over all of `libtriton.so`,
    even where it compiles in any case (3.6.0, 3.7.1, 3.8.0, 3.9.0).
    """
    triton_key()


def reason_of(error: Exception) -> str:
    """The error without the command at its end, whose temporary paths are gone by then."""
    text = f"{type(error).__name__}: {error}".split("\nRepro command:")[0]
    return text.strip()[:_REASON_CHARACTERS]


def parameters_of(function: Any, variant: Variant) -> tuple[tuple[str, str], ...]:
    """The runtime arguments that the compiled kernel takes, in order, as (name, type)."""
    return _signature(function, variant).parameters


def _signature(function: Any, variant: Variant) -> _Signature:
    arguments = {argument.name: argument for argument in variant.launch.arguments}
    given: dict[str, Constant] = dict(variant.launch.constexprs)
    given.update(variant.configuration.constexprs)
    unknown = sorted((arguments.keys() | given.keys()) - set(function.arg_names))
    if unknown:
        raise _wrong(variant, "the kernel has no such parameter", ", ".join(unknown))
    twice = sorted(arguments.keys() & given.keys())
    if twice:
        raise _wrong(variant, "both a constexpr and a runtime argument", ", ".join(twice))
    types: dict[str, str] = {}
    constants: dict[tuple[int, ...], Constant] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    parameters: list[tuple[str, str]] = []
    for parameter in function.params:
        name, path = parameter.name, (parameter.num,)
        argument = arguments.get(name)
        if argument is None:
            if name not in given and not (parameter.is_constexpr and parameter.has_default):
                raise _wrong(variant, "a parameter of the kernel is not given", name)
            types[name] = "constexpr"
            constants[path] = given.get(name, parameter.default)
        elif argument.is_tuple:
            # Compiled by Triton's own launch path alone (`cache_entries`).
            parameters += _runtime_leaves(parameter, argument)
        elif argument.type == "none":
            types[name] = "constexpr"
            constants[path] = None
        elif argument.type.startswith("="):
            types[name] = "constexpr"
        elif argument.specialisation == "==1" and not parameter.annotation_type:
            # With a type annotation Triton keeps the argument, though it keys on the 1
            # (`create_function_from_signature`: 3.6.0, 3.7.1, 3.8.0, 3.9.0).
            types[name] = "constexpr"
            constants[path] = 1
        else:
            _refuse_unsupported(variant, argument)
            types[name] = argument.type
            if argument.specialisation in ("aligned", "%16"):
                attributes[path] = _DIVISIBLE_BY_16
            parameters.append((name, argument.type))
    return _Signature(types, constants, attributes, tuple(parameters))


def _runtime_leaves(parameter: Any, argument: Argument) -> list[tuple[str, str]]:
    """Those elements of a tuple that the compiled kernel takes, as parameters of their own."""
    return [
        (leaf.name, leaf.type)
        for leaf in argument.leaves
        if leaf.type != "none"
        and not leaf.type.startswith("=")
        and (leaf.specialisation != "==1" or parameter.annotation_type)
    ]


def _refuse_unsupported(variant: Variant, argument: Argument) -> None:
    if argument.type.startswith(("tensordesc", "nvTmaDesc")):
        raise _wrong(variant, "tensor-descriptor arguments are not supported", argument.name)


def launch_options(variant: Variant, number: int) -> dict[str, Constant]:
    configuration = variant.configuration
    # Triton 3.10 turns the default of `enable_fp_fusion` around; what a kernel is must not follow,
    # nor the variables TRITON_INSTRUMENTATION_MODE and, below, TRITON_OVERRIDE_ARCH.
    options: dict[str, Constant] = {
        "enable_fp_fusion": True, "instrumentation_mode": "", **dict(variant.launch.options)
    }  # fmt: skip
    # `parse_options` drops a name that it does not know without a word (3.6.0 to 3.9.0).
    unknown = sorted(options.keys() - set(CUDAOptions.__dataclass_fields__))
    if unknown:
        raise _wrong(variant, "Triton has no such compile option", ", ".join(unknown))
    options.update(num_warps=configuration.num_warps, num_stages=configuration.num_stages)
    if configuration.maxnreg is not None:
        options["maxnreg"] = configuration.maxnreg
    options["arch"] = f"sm{number}"
    return options


@contextmanager
def alone(gpu: Any, *, line_info: bool = False) -> Iterator[Assembler]:
    """Triton without a device, and with a cache and temporary files that nobody else sees.

    Whether lines are kept is part of Triton's key; with `line_info` that is the user's own choice,
    and the assembler leaves out the tables instead, so that the code holds no path.
    """
    # `reset_active` would look for a GPU, so the slot itself is put back (`DriverConfig._active`:
    # 3.6.0, 3.7.1, 3.8.0, 3.9.0). `knobs.X.scope` restores values and environment variables.
    before = driver_slot._active
    temporary_before = tempfile.tempdir
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ssd-aot-"))
        for group in (knobs.cache, knobs.compilation, knobs.runtime):
            stack.enter_context(group.scope())
        try:
            driver_slot.set_active(_TargetOnlyDriver(gpu))
            # ptxas' input and output, which Triton leaves behind when ptxas fails.
            tempfile.tempdir = folder
            knobs.cache.dir = folder
            knobs.cache.manager_class = None
            knobs.compilation.always_compile = True
            if not line_info:
                knobs.compilation.disable_line_info = True
            knobs.compilation.store_binary_only = True
            knobs.compilation.dump_ir = False
            knobs.compilation.override = False
            knobs.compilation.use_ir_loc = None
            knobs.compilation.listener = None
            knobs.runtime.add_stages_inspection_hook = None
            yield stack.enter_context(assembling(Path(folder), drop_lines=line_info))
        finally:
            tempfile.tempdir = temporary_before
            driver_slot._active = before


def described_object(
    kernel: Any,
    log: str,
    parameters: tuple[tuple[str, str], ...],
    variant: Variant,
    target: Target,
) -> CompiledObject:
    facts = kernel.metadata
    cubin: bytes = kernel.asm["cubin"]
    made_for = cubin_architecture(cubin)
    if not same_architecture(made_for, target.arch):
        raise _wrong(variant, f"not code for {target.arch}", made_for)
    clusters = tuple(getattr(facts, "cluster_dims", ()))
    if facts.num_ctas > 1 and clusters != (facts.num_ctas, 1, 1):
        raise _wrong(variant, "several blocks in a cluster are not supported", str(facts.num_ctas))
    tensor_memory = getattr(facts, "tmem_size", None) or 0
    if tensor_memory > _TENSOR_MEMORY_COLUMNS:
        raise _wrong(
            variant,
            f"more than {_TENSOR_MEMORY_COLUMNS} columns of tensor memory",
            f"{tensor_memory} columns",
        )
    registers, spill_bytes = _resources(log, variant)
    code = CodeObject(
        sha256=hashlib.sha256(cubin).hexdigest(),
        size_bytes=len(cubin),
        function=facts.name,
        arch=target.arch,
        # Warp specialisation raises the number of warps above the one asked for.
        num_warps=facts.num_warps,
        num_ctas=facts.num_ctas,
        shared_bytes=facts.shared,
        registers=registers,
        spill_bytes=spill_bytes,
        global_scratch_bytes=facts.global_scratch_size or 0,
        profile_scratch_bytes=facts.profile_scratch_size or 0,
        launch_pdl=bool(facts.launch_pdl),
        launch_cooperative=bool(facts.launch_cooperative_grid),
        parameters=parameters,
    )
    return CompiledObject(cubin, code)


def _resources(log: str, variant: Variant) -> tuple[int, int]:
    """Registers a thread, and bytes a thread stores to spill them, from the output of ptxas -v;
    they are nowhere else before a driver loads the code."""
    registers = [int(count) for count in re.findall(r"Used (\d+) registers", log)]
    spills = [int(count) for count in re.findall(r"(\d+) bytes spill stores", log)]
    if not registers or not spills:
        raise _wrong(variant, "ptxas told no registers and spills", log.strip()[-400:] or "nothing")
    return max(registers), sum(spills)


def _wrong(variant: Variant, what: str, found: str) -> BuildError:
    where = f"{variant.launch.kernel} [{variant.configuration}]"
    return BuildError(what, where=where, found=found)
