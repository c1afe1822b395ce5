"""From a reference such as `package.module:function` to the Triton function behind it."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from triton import JITFunction

from ssd_aot.errors import BuildError


@cache
def kernel_function(reference: str) -> Any:
    """The `triton.JITFunction` that `module:function` names, without autotuner or heuristics.

    Raises BuildError when there is no such function, or when it is not one that can be compiled.
    """
    module, _, name = reference.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise BuildError(
            "there is no such kernel",
            where=reference,
            found=f"{type(error).__name__}: {error}",
            wanted="module:function",
        ) from error
    return _bare(found, reference)


def _bare(found: Any, reference: str) -> Any:
    # Autotuner and Heuristics keep what they wrap in `fn` (3.6.0, 3.7.1, 3.8.0, 3.9.0).
    bare = found
    while not isinstance(bare, JITFunction) and hasattr(bare, "fn"):
        bare = bare.fn
    if isinstance(bare, JITFunction):
        return bare
    raise BuildError(
        "not a Triton kernel that can be compiled",
        where=reference,
        found=type(found).__name__,
        wanted="a function decorated with triton.jit",
        mend="unset TRITON_INTERPRET" if "Interpreted" in type(found).__name__ else "",
    )


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
