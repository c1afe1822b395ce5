"""From a Triton function to a reference such as `package.module:function`, and back.

A function of the program itself, which Python knows as `__main__`, is named by the program's
module where it was started with `-m`, and else by its file: `serve.py:function`. Such a file is
looked for in the folders of `look_for_programs_in`, and run as a module that is not `__main__`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from triton import JITFunction
from triton.runtime.jit import JITCallable

from ssd_aot.bundle.manifest import KernelText
from ssd_aot.errors import BuildError

_PROGRAM = ("__main__", "__mp_main__")
"""What Python calls the program, and a program's module in the processes that it spawns."""
_SCRIPT = ".py"
_folders: list[Path] = []


@cache
def kernel_function(reference: str) -> Any:
    """The `triton.JITFunction` that `module:function` names, without autotuner or heuristics.

    Raises BuildError when there is no such function, or when it is not one that can be compiled.
    """
    found = jit_callable(reference)
    if isinstance(found, JITFunction):
        return found
    raise _not_compilable(found, reference)


@cache
def jit_callable(reference: str) -> Any:
    """The function that a kernel can call, or is; see `kernel_function`."""
    found = _found(reference)
    # Autotuner and Heuristics keep what they wrap in `fn` (3.6.0, 3.7.1, 3.8.0, 3.9.0).
    bare = found
    while not isinstance(bare, JITCallable) and hasattr(bare, "fn"):
        bare = bare.fn
    if isinstance(bare, JITCallable):
        return bare
    raise _not_compilable(found, reference)


def _found(reference: str) -> Any:
    module, _, name = reference.partition(":")
    try:
        found: Any = _module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise BuildError(
            "there is no such kernel",
            where=reference,
            found=f"{type(error).__name__}: {error}",
            wanted="module:function",
        ) from error
    return found


def _not_compilable(found: Any, reference: str) -> BuildError:
    return BuildError(
        "not a Triton kernel that can be compiled",
        where=reference,
        found=type(found).__name__,
        wanted="a function decorated with triton.jit",
        mend="unset TRITON_INTERPRET" if "Interpreted" in type(found).__name__ else "",
    )


def _module(name: str) -> ModuleType:
    loaded = loaded_module(name)
    if loaded is not None:
        return loaded
    if not name.endswith(_SCRIPT):
        return importlib.import_module(name)
    for folder in _folders:
        path = folder / name
        if path.is_file():
            return _run_script(name, path)
    raise ImportError(f"no file {name} in {', '.join(map(str, _folders)) or 'any folder'}")


def _run_script(name: str, path: Path) -> ModuleType:
    """As `multiprocessing` runs a program's file in the processes that it spawns."""
    spec = importlib.util.spec_from_file_location(name.removesuffix(_SCRIPT), path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def loaded_module(name: str) -> ModuleType | None:
    """The module of a reference where this process has it, the program itself included."""
    for program in _PROGRAM:
        module = sys.modules.get(program)
        if module is not None and name == _program_name(module):
            return module
    return sys.modules.get(name)


def _program_name(module: ModuleType) -> str:
    """`package.module` of a program started with `-m`, else its file's name, else nothing."""
    spec = getattr(module, "__spec__", None)
    if spec is not None and spec.name not in _PROGRAM:
        return str(spec.name)
    return Path(getattr(module, "__file__", None) or "").name


def reference_of(function: Any) -> str:
    """The reference of a Triton function (see the module). Whether it leads back is for
    `refuse_unreachable` to say."""
    module = str(function.__module__)
    if module in _PROGRAM and module in sys.modules:
        module = _program_name(sys.modules[module]) or module
    return f"{module}:{function.fn.__qualname__}"


def refuse_unreachable(function: Any) -> None:
    """Raises BuildError for a function that its reference does not lead back to: one made inside
    another function, or by a module that was generated."""
    reference = reference_of(function)
    module, _, name = reference.partition(":")
    loaded = loaded_module(module)
    found: Any = loaded
    for part in name.split("."):
        found = getattr(found, part, None)
    while found is not None and found is not function:
        found = getattr(found, "fn", None)
    importable = loaded is not None and (
        module.endswith(_SCRIPT) or getattr(loaded, "__spec__", None) is not None
    )
    if found is None or not importable:
        raise BuildError(
            "the kernel cannot be found again by module and name",
            where=reference,
            found="a function made while the program ran",
            wanted="a function at the top of a module that can be imported",
        )


def look_for_programs_in(folders: Iterable[Path]) -> None:
    """Find programs' files, and the modules beside them, in these folders as well from now on."""
    for folder in folders:
        if folder not in _folders:
            _folders.append(folder)
            sys.path.append(str(folder))


def source_hash(function: Any) -> str:
    """sha256 over the source and line number of a kernel and of all it calls.

    It is Triton's own `JITFunction.cache_key` (3.6.0, 3.7.1, 3.8.0, 3.9.0); paths do not enter.
    Raises BuildError when Triton cannot read the source.
    """
    try:
        return str(function.cache_key)
    except Exception as error:
        raise BuildError(
            "the kernel's source cannot be read",
            where=f"{function.__module__}:{function.__name__}",
            found=f"{type(error).__name__}: {error}",
        ) from error


def kernel_text(function: Any) -> KernelText:
    """A kernel's own text, without decorators, and the line that it begins on."""
    # What `cache_key` hashes first, and last (3.6.0, 3.7.1, 3.8.0, 3.9.0).
    text = hashlib.sha256(function.src.encode()).hexdigest()
    return KernelText(text, function.starting_line_number)


def refuse_changed_source(
    function: Any, reference: str, wanted: str, text: KernelText | None = None
) -> None:
    """Raises BuildError where a function's source is another than the one with hash `wanted`."""
    found = source_hash(function)
    if found == wanted:
        return
    raise BuildError(
        "the kernel has another source than was recorded",
        where=reference,
        found=changed_part(kernel_text(function), text),
        wanted=f"the source with hash {wanted[:12]}",
        mend="record the program again as it is now, or install what was recorded",
    )


def changed_part(found: KernelText, wanted: KernelText | None) -> str:
    """What of a kernel's source changed, its hash being another."""
    if wanted is None:
        return "another hash"
    if found.sha256 != wanted.sha256:
        return "another source text"
    if found.line != wanted.line:
        return f"the same source text on line {found.line}, not {wanted.line}"
    return "the same source text on the same line, with something other that it calls or a constant"
