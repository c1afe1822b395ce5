"""Autotuned launches without the tuner's own key: what it chose once is launched directly.

`Autotuner.run` matches every argument's name against a list and spells the dtype of every tensor
to look its choice up, at every launch (3.6.0 to 3.9.0). Here the choice is kept under the values of
the tuner's key arguments and the dtypes themselves, which tell the same calls apart; nothing is
listed by hand. vLLM 0.33 does this for its own scan.
"""

from __future__ import annotations

from typing import Any

from triton import knobs
from triton.runtime.autotuner import Autotuner

THE_TUNERS_OWN = Autotuner.run


def launch_directly() -> None:
    """Let every autotuner of this process remember its choices so; more than once does nothing."""
    Autotuner.run = _run_remembered


def launch_by_the_tuner() -> None:
    """Undo `launch_directly`."""
    Autotuner.run = THE_TUNERS_OWN


def _run_remembered(tuner: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        remembered, by_value = tuner.__dict__["_ssd_aot_choices"]
    except KeyError:
        by_value = tuple(name in tuner.keys for name in tuner.arg_names)
        remembered, _ = tuner._ssd_aot_choices = {}, by_value
    key = (
        tuple(kwargs),
        *[
            argument if valued else getattr(argument, "dtype", None)
            for argument, valued in zip(args, by_value, strict=False)
        ],
        *[getattr(argument, "dtype", None) for argument in kwargs.values()],
        *[kwargs.get(name) for name in tuner.keys],
    )
    try:
        choice = remembered.get(key)
    except TypeError:  # an argument of the key that cannot be hashed
        return THE_TUNERS_OWN(tuner, *args, **kwargs)
    if choice is not None:
        config, named = choice
        tuner.best_config = config
        return tuner.fn.run(*args, **kwargs, **named)
    launched = THE_TUNERS_OWN(tuner, *args, **kwargs)
    config = tuner.best_config
    # A hook has to see each launch, and printing is asked for by those who want the tuner's own.
    if config.pre_hook is None and not knobs.autotuning.print:
        remembered[key] = config, config.all_kwargs()
    return launched
