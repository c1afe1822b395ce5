"""What Triton's launch path makes of a call, as a launch and a configuration."""

from __future__ import annotations

from typing import Any

from ssd_aot.launches import Argument, Configuration, Constant, Launch
from ssd_aot.triton_compat.kernel import reference_of
from ssd_aot.triton_compat.values import spelled, spelled_argument

_OPTIONS_OF_A_CANDIDATE = ("num_warps", "num_stages", "maxnreg")


def describe(
    function: Any, signature: Any, constants: Any, attributes: Any, options: Any, backend: Any
) -> tuple[Launch, Configuration]:
    """The launch with every constexpr in it, and the configuration with none; the values are those
    that Triton hands to its compiler (`_do_compile`: 3.6.0 to 3.9.0).

    Raises BuildError for a value that has no spelling.
    """
    where = f"{function.__name__}"
    constexprs: list[tuple[str, Constant]] = []
    arguments: list[Argument] = []
    for parameter in function.params:
        name, path = parameter.name, (parameter.num,)
        if parameter.is_constexpr:
            constexprs.append((name, spelled(constants[path], f"{where}: {name}")))
        else:
            kind = signature[name]
            arguments.append(spelled_argument(name, kind, path, constants, attributes, where))
    # TRITON_DEFAULT_FP_FUSION turns a default around; `launch_options` goes by Triton's own.
    usual = backend.parse_options({"enable_fp_fusion": True})
    given = tuple(
        (name, value)
        for name, value in sorted(vars(options).items())
        if name not in _OPTIONS_OF_A_CANDIDATE and value != getattr(usual, name)
    )
    launch = Launch(reference_of(function), tuple(constexprs), tuple(arguments), given)
    return launch, Configuration((), options.num_warps, options.num_stages, options.maxnreg)
