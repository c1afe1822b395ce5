"""A tuner's choice made for it, so that an engine's own launch code runs what is to be measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from triton import Config
from triton.errors import TritonError
from triton.runtime.autotuner import Autotuner

from ssd_aot.errors import HostError
from ssd_aot.triton_compat.kernel import loaded_module

REFUSALS: tuple[type[Exception], ...] = (TritonError,)
"""What Triton raises for a kernel that does not compile or does not fit (3.6.0 to 3.9.0)."""


def force_choice(kernel: str, tuning_key: str, spelled: str) -> None:
    """From here on the tuner of `kernel` ("module:function", imported) takes one configuration
    under a tuning key: both as JSON, the configuration as Triton's tuning results spell it."""
    tuner = tuner_of(kernel)
    if tuner is None:
        raise HostError(
            "the kernel's tuner cannot be reached",
            where=kernel,
            found="no triton.autotune at the top of a module that is imported",
            wanted="the engine that was traced",
        )
    # An engine that remembers the choices of its tuners does so only for those without a hook.
    fields = {**json.loads(spelled), "pre_hook": _do_nothing}
    # {tuning key: configuration} (3.6.0 to 3.9.0).
    tuner.cache[_hashable(json.loads(tuning_key))] = Config(**fields)


def tuner_of(kernel: str) -> Any:
    """The autotuner around an imported kernel, None where there is none."""
    module, _, name = kernel.partition(":")
    found: Any = getattr(loaded_module(module), name, None)
    while found is not None and not isinstance(found, Autotuner):
        found = getattr(found, "fn", None)
    return found


@contextmanager
def refusing_to_tune() -> Iterator[None]:
    """Until the end of the block no tuner measures. Raises HostError, out of the launch, for one
    whose choice was not forced."""
    own = Autotuner._bench

    def refuse(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        raise HostError(
            "a launch asks for a choice that the trace did not show",
            where=tuner.base_fn.__name__,
            found="a tuning key of its own",
            wanted="the keys of the trace",
            mend="report the engine's version",
        )

    Autotuner._bench = refuse
    try:
        yield
    finally:
        Autotuner._bench = own


def _do_nothing(arguments: Any) -> None:
    """In the place of a hook before launches."""


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
