"""Triton's own keys for what was recorded, on whatever target is presented to it."""

from __future__ import annotations

import hashlib
import json
from base64 import b32decode
from collections.abc import Mapping, Sequence
from typing import Any

from triton import knobs
from triton._C.libtriton import get_cache_invalidating_env_vars
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.autotuner import Autotuner, Config
from triton.runtime.cache import get_cache_key
from triton.runtime.jit import compute_cache_key

from ssd_aot.launches import Constant, Variant
from ssd_aot.targets import Target
from ssd_aot.triton_compat.cache_entries import launch_source
from ssd_aot.triton_compat.captured import TuningResult
from ssd_aot.triton_compat.compilation import launch_options
from ssd_aot.triton_compat.values import decoded, specialised

_OF_A_CANDIDATE = ("num_warps", "num_ctas", "num_stages", "maxnreg", "ir_override")
"""What an autotuner adds to the options of a call, in its order (`Config.all_kwargs`: 3.6.0 to
3.9.0)."""


def entry_key(function: Any, variant: Variant, target: Target) -> str:
    """The key (sha256) under which Triton asks its cache for a variant on `target`."""
    number = target.compute_capability
    backend = make_backend(GPUTarget("cuda", number, 32))
    options = launch_options(variant, number)
    source = launch_source(function, variant, backend, options)
    named = get_cache_key(
        source, backend, backend.parse_options(options), get_cache_invalidating_env_vars()
    )
    return hashlib.sha256(named.encode()).hexdigest()


def launch_key(
    function: Any,
    variant: Variant,
    given: Sequence[tuple[str, Constant]],
    config: Mapping[str, Any] | None,
) -> str:
    """The key under which a process keeps the variant once it has it. `given` are the options of a
    call, in whose place those of `config` stand where an autotuner chooses them."""
    arguments = {argument.name: argument for argument in variant.launch.arguments}
    values: dict[str, Constant] = dict(variant.launch.constexprs)
    values.update(variant.configuration.constexprs)
    # [(type, class)] as a kernel's binder gives them (3.6.0 to 3.9.0).
    classes: list[tuple[Any, Any]] = []
    for parameter in function.params:
        argument = arguments.get(parameter.name)
        if argument is None:
            value = values.get(parameter.name, parameter.default)
            classes.append(("constexpr", decoded(value)))
        else:
            kind, found, _ = specialised(parameter, argument)
            classes.append((kind, found))
    options = {name: decoded(value) for name, value in given}
    if config is not None:
        chosen = {n: config[n] for n in _OF_A_CANDIDATE if config.get(n) is not None}
        at = next((i for i, name in enumerate(options) if name in chosen), 0)
        left = [(n, v) for n, v in options.items() if n not in _OF_A_CANDIDATE]
        options = dict([*left[:at], *chosen.items(), *left[at:]])
    return str(compute_cache_key({}, classes, options))


class _Asked(Exception):
    """Out of a look-up: under which key, and for which file."""


class _Asking:
    """A cache manager that tells which key it was made for."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        self._key = key

    def get_file(self, filename: str) -> None:
        # Triton gives its managers the key in base 32 without padding (3.6.0 to 3.9.0).
        padded = self._key + "=" * (-len(self._key) % 8)
        raise _Asked(b32decode(padded).hex(), filename)


def tuning_result(
    function: Any, key: tuple[Any, ...], offered: Sequence[Mapping[str, Any]]
) -> TuningResult:
    """Where Triton looks for the result of tuning `function` for `key` among these candidates, each
    as it stores them, on the target that is presented to it."""
    tuner = Autotuner.__new__(Autotuner)
    tuner.fn = function
    configs = [Config(**config) for config in offered]
    with knobs.cache.scope():
        knobs.cache.manager_class = _Asking
        try:
            # (tuning key, candidates, measurement): 3.6.0 to 3.9.0.
            tuner.check_disk_cache(key, configs, lambda: None)
        except _Asked as asked:
            found, file = asked.args
            return TuningResult(found, file, json.dumps(key))
    return TuningResult(reason="Triton looks no result up for it")
