"""An engine's variant to the entry that Triton's cache keeps for it: code, metadata, key."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

from ssd_aot.compilation.threads import environment_of_the_user
from ssd_aot.errors import BuildError
from ssd_aot.launches import Constant, Variant
from ssd_aot.targets import Target
from ssd_aot.triton_compat.compilation import (
    CompiledObject,
    alone,
    described_object,
    launch_options,
    parameters_of,
    reason_of,
)
from ssd_aot.triton_compat.host_modules import launcher_source
from ssd_aot.triton_compat.values import decoded, specialised


def compile_entry(function: Any, variant: Variant, target: Target, key: str) -> CompiledObject:
    """Compiles `function` (a `triton.JITFunction`) as Triton's launch path would on `target`.

    The code is what the engine would get but for its line tables, which hold paths; so does the
    metadata but for the path of libdevice, in whose place its name and content stand. Raises
    BuildError when Triton or ptxas fails, when the launch could not be made, or when Triton's key
    for it is not `key`, under which the engine would look.
    """
    number = target.compute_capability
    gpu = GPUTarget("cuda", number, 32)
    options = launch_options(variant, number)
    where = f"{variant.launch.kernel} [{variant.configuration}] for {target.arch}"
    try:
        # Triton prints the whole PTX when ptxas fails; the reason is in the exception as well.
        with (
            environment_of_the_user(),
            alone(gpu, line_info=True) as assembler,
            redirect_stdout(io.StringIO()),
        ):
            source = launch_source(function, variant, make_backend(gpu), options)
            kernel = triton.compile(source, target=gpu, options=options)
            metadata = _metadata(kernel)
            launcher = launcher_source(kernel.src, kernel.metadata)
    except (OSError, MemoryError):
        raise
    except Exception as error:
        raise BuildError(
            "the kernel does not compile", where=where, found=reason_of(error)
        ) from error
    if kernel.hash != key:
        raise BuildError(
            "Triton names the compiled kernel otherwise than the engine will ask for it",
            where=where,
            found=f"key {kernel.hash}",
            wanted=f"key {key}, as the engine's launch was captured",
            mend="build in one environment, with the same variables for planning and compiling",
        )
    made = described_object(
        kernel, assembler.log, parameters_of(function, variant), variant, target
    )
    return CompiledObject(made.cubin, made.code, metadata, launcher)


def launch_source(
    function: Any, variant: Variant, backend: Any, options: dict[str, Constant]
) -> Any:
    """What Triton's launch path hands to its compiler, packed by that path itself.

    `_pack_args(backend, options, bound arguments, [(type, class)], …)`: 3.6.0 to 3.9.0, which
    differ in what they make of it.
    """
    arguments = {argument.name: argument for argument in variant.launch.arguments}
    given: dict[str, Constant] = dict(variant.launch.constexprs)
    given.update(variant.configuration.constexprs)
    bound: dict[str, Any] = {}
    classes: list[tuple[str, Any]] = []
    for parameter in function.params:
        argument = arguments.get(parameter.name)
        if argument is None:
            value = given.get(parameter.name, parameter.default)
            bound[parameter.name] = decoded(value)
            classes.append(("constexpr", bound[parameter.name]))
        else:
            kind, found, value = specialised(parameter, argument)
            bound[parameter.name] = value
            classes.append((kind, found))
    # The architecture is the target's own and no option of the launch.
    named = {name: value for name, value in options.items() if name != "arch"}
    _, types, constants, attributes = function._pack_args(backend, named, bound, classes, None)
    return ASTSource(function, types, constants, attributes)


def _metadata(kernel: Any) -> bytes:
    """The entry's JSON without a path: `extern_libs` is [[name, path]] (3.6.0 to 3.9.0), and
    nothing that runs reads it."""
    name = next(name for name in kernel.metadata_group if name.endswith(".json"))
    values = json.loads(Path(kernel.metadata_group[name]).read_text())
    values["extern_libs"] = [[name, Path(path).name] for name, path in values["extern_libs"]]
    return json.dumps(values, sort_keys=True).encode()
