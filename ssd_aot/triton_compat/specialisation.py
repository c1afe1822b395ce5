"""What Triton itself would make of the values a kernel is called with."""

from __future__ import annotations

from typing import Any

from triton._C.libtriton import native_specialize_impl
from triton.backends.compiler import BaseBackend
from triton.runtime.jit import create_function_from_signature

from ssd_aot.errors import BuildError
from ssd_aot.launches import Argument, Constant, Launch


def describe_argument(
    name: str, value: Any, *, specialise: bool = True, align: bool = True
) -> Argument:
    """The type and class of one runtime value, by the routine that Triton's launch path calls.

    `specialise=False` is a parameter named in `do_not_specialize`, `align=False` one named in
    `do_not_specialize_on_alignment`. Raises BuildError for a value that no launch can carry.
    """
    try:
        # (backend, value, is_const, specialise, align): 3.6.0, 3.7.1, 3.8.0, 3.9.0. The backend
        # is asked only for a tensor's alignment, and BaseBackend's answer is CUDA's.
        described = native_specialize_impl(BaseBackend, value, False, specialise, align)
    except TypeError as error:
        raise BuildError(
            "a kernel cannot take this value as an argument",
            where=name,
            found=f"{type(value).__name__}",
            wanted="a number, a tensor or None",
        ) from error
    return _argument(name, *described)


def describe_launch(function: Any, *values: Any, **named: Any) -> Launch:
    """The launch that calling `function` with these values is; the options given are kept.

    What a candidate chooses (`num_warps`, `num_stages`, `maxnreg`, tile constexprs) is not told
    apart here: constexprs are all the function's own, options are all that were given.
    """
    # Triton builds the binder of each kernel with this (3.6.0, 3.7.1, 3.8.0, 3.9.0).
    bind = create_function_from_signature(function.signature, function.params, BaseBackend)
    bound, specialisations, options = bind(*values, **named)
    constexprs: list[tuple[str, Constant]] = []
    arguments: list[Argument] = []
    for parameter, described in zip(function.params, specialisations, strict=True):
        if parameter.is_constexpr:
            constexprs.append((parameter.name, bound[parameter.name]))
        else:
            arguments.append(_argument(parameter.name, *described))
    return Launch(
        kernel=function.__name__,
        constexprs=tuple(constexprs),
        arguments=tuple(arguments),
        options=tuple(sorted(options.items())),
    )


def _argument(name: str, kind: Any, specialisation: Any) -> Argument:
    if not isinstance(kind, str):
        raise BuildError(
            "tuple arguments are not supported",
            where=name,
            found=f"a tuple of {', '.join(map(str, kind))}",
            wanted="a number, a tensor or None",
        )
    if kind == "constexpr":
        # Triton makes an argument that is 1 or None a constant of the kernel.
        return Argument(name, "none") if specialisation is None else Argument(name, "i32", "==1")
    divisible = isinstance(specialisation, str) and "D" in specialisation
    if kind.startswith("*"):
        return Argument(name, kind, "aligned" if divisible else "unaligned")
    if kind[0] in "iu" and kind != "u1":
        if specialisation == 1:
            return Argument(name, kind, "==1")
        return Argument(name, kind, "%16" if divisible else "other")
    # A descriptor's type is spelled with spaces, and a class follows the first space.
    return Argument(name, kind.replace(" ", ""))
