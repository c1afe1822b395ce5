"""The launch that this thread is compiling, and the tuning that it is in, read from the stack.

Triton's hooks are slots that a program may fill at any time, and filling one makes Triton spell
each specialisation as JSON, which fails for a constexpr that is a function of Triton's library.
Whoever asks from within a look-up needs neither: the values are in the frames that called it. No
launch pays for it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from triton.runtime.autotuner import Autotuner, Config
from triton.runtime.jit import JITFunction

from ssd_aot.launches import Configuration, Launch
from ssd_aot.triton_compat.autotuned import THE_TUNERS_OWN
from ssd_aot.triton_compat.describing import describe
from ssd_aot.triton_compat.kernel import reference_of

# The frames' functions and the names in them: 3.6.0, 3.7.1, 3.8.0, 3.9.0.
_COMPILE: CodeType = JITFunction._do_compile.__code__
_RUN: CodeType = JITFunction.run.__code__
_TUNE: CodeType = THE_TUNERS_OWN.__code__
_MEASURE: CodeType = Autotuner._bench.__code__
_LOOK_UP: CodeType = Autotuner.check_disk_cache.__code__


@dataclass(frozen=True)
class TuningInProgress:
    """An autotuner at work: `key` is its tuning key, None where it has nothing to choose; `configs`
    are those that pruning left; `trial` is the one that is being measured, None at the launch of
    the chosen one."""

    function: Any
    key: tuple[Any, ...] | None
    configs: tuple[Any, ...]
    trial: Any
    chosen: Any
    derives: tuple[str, ...]
    """Constexprs that heuristics below the tuner work out from what a candidate chooses."""

    @property
    def kernel(self) -> str:
        return reference_of(self.function)


@dataclass(frozen=True)
class CompilationInProgress:
    """A kernel that Triton looks up or compiles for a launch. `key` is the one under which this
    process keeps it; `options` are the launch's own, in the order given."""

    function: Any
    key: str
    options: tuple[tuple[str, Any], ...]
    tuning: TuningInProgress | None
    _packed: tuple[Any, ...]

    @property
    def kernel(self) -> str:
        return reference_of(self.function)

    def described(self) -> tuple[Launch, Configuration]:
        """The launch with every constexpr in it, and the configuration with none. Raises BuildError
        for a value that has no spelling."""
        return describe(self.function, *self._packed)


def compilation_in_progress() -> CompilationInProgress | None:
    """What the nearest frame of a compilation is about; None outside of one."""
    frames = _frames()
    for frame in frames:
        if frame.f_code is _COMPILE:
            own = frame.f_locals
            function = own["self"]
            backend = function.device_caches[own["device"]][3]
            packed = tuple(own[name] for name in ("signature", "constexprs", "attrs", "options"))
            return CompilationInProgress(
                function,
                own["key"],
                _options(frame.f_back, function),
                _tuning(frames, function),
                (*packed, backend),
            )
    return None


def tuning_in_progress() -> TuningInProgress | None:
    """The nearest run of an autotuner; None outside of one."""
    return _tuning(_frames(), None)


def _options(frame: FrameType | None, function: Any) -> tuple[tuple[str, Any], ...]:
    while frame is not None and frame.f_code is not _RUN:
        frame = frame.f_back
    given = frame.f_locals["kwargs"] if frame is not None else {}
    return tuple((name, value) for name, value in given.items() if name not in function.arg_names)


def _tuning(frames: Iterator[FrameType], function: Any) -> TuningInProgress | None:
    """The run of the tuner around `function`, or around any where that is None."""
    trial = None
    look_up: dict[str, Any] = {}
    for frame in frames:
        if frame.f_code is _COMPILE:
            return None  # of another kernel
        own = frame.f_locals
        if frame.f_code is _MEASURE:
            trial = own["config"]
        elif frame.f_code is _LOOK_UP:
            look_up = own
        elif frame.f_code is _TUNE:
            tuner = own["self"]
            key = own.get("key") if len(tuner.configs) > 1 else None
            left = look_up.get("configs") or own.get("pruned_configs") or tuner.configs
            return _of_tuner(tuner, function, key, left, trial, own.get("config"))
    if look_up:  # by `preloading`, without a launch
        key, left = look_up["tuning_key"], look_up["configs"]
        return _of_tuner(look_up["self"], function, key, left, None, None)
    return None


def _of_tuner(
    tuner: Any, function: Any, key: Any, configs: Any, trial: Any, chosen: Any
) -> TuningInProgress | None:
    bare, derives = _bare(tuner)
    if function is not None and bare is not function:
        return None
    return TuningInProgress(bare, key, tuple(configs), trial, chosen, derives)


def _bare(tuner: Any) -> tuple[Any, tuple[str, ...]]:
    """The function that is tuned, and what heuristics on the way to it derive."""
    derives: list[str] = []
    inner = tuner.fn
    while not isinstance(inner, JITFunction):
        derives += getattr(inner, "values", {})
        inner = inner.fn
    return inner, tuple(derives)


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def config_fields(config: Config) -> dict[str, Any]:
    """What Triton stores of a candidate, without a hook, which it cannot."""
    return {name: value for name, value in vars(config).items() if name != "pre_hook"}
