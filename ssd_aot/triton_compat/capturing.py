"""Every launch that a program would make, by Triton's own launch path, without a GPU.

Triton binds, specialises and names its cache entries as ever; where it would compile, a stand-in
takes the kernel's place that reports its launches. Where it would tune, each candidate that
`prune_configs` leaves for the launch's arguments is launched in turn, and the look-up of an earlier
result tells the name under which Triton wants it.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b32decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from triton import knobs
from triton._C.libtriton import get_cache_invalidating_env_vars
from triton.compiler import ASTSource
from triton.runtime.autotuner import Autotuner
from triton.runtime.cache import get_cache_key
from triton.runtime.jit import JITFunction

from ssd_aot.launches import Configuration, Launch
from ssd_aot.triton_compat.captured import CapturedCandidate, CapturedLaunch, TuningResult
from ssd_aot.triton_compat.describing import describe
from ssd_aot.triton_compat.kernel import kernel_text


@dataclass(eq=False)
class _Kernel:
    """Stands where Triton keeps a compiled kernel: told of each launch, it tells the capture."""

    function: Any
    launch: Launch
    source_sha256: str
    candidate: CapturedCandidate
    capture: Capture
    packed_metadata: tuple[int, ...] = ()

    def launch_metadata(self, *_: Any) -> None:
        return None

    def run(self, *arguments: Any) -> None:
        # Nine values come before the kernel's own (`JITFunction.run`: 3.6.0, 3.7.1, 3.8.0, 3.9.0).
        self.capture.launched(self, arguments[9:])


@dataclass
class _Tuning:
    """One run of an autotuner: its candidates as they are launched, and the launch at its end."""

    candidates: list[tuple[Any, _Kernel]] = field(default_factory=list)
    trying: Any = None
    final: _Kernel | None = None
    result: TuningResult | None = None


@dataclass
class Capture:
    """Reports each launch to `report` while `capturing`."""

    report: Callable[[CapturedLaunch], None]
    _tuners: dict[Any, Any] = field(default_factory=dict)
    _orders: dict[Any, tuple[str, ...]] = field(default_factory=dict)
    _known: dict[tuple[_Kernel, Any], CapturedLaunch] = field(default_factory=dict)
    _tunings: list[_Tuning] = field(default_factory=list)

    def tuner_of(self, function: Any, tuner: Any) -> None:
        self._tuners[function] = tuner

    def launched(self, kernel: _Kernel, values: tuple[Any, ...]) -> None:
        if self._tunings:
            tuning = self._tunings[-1]
            if tuning.trying is None:
                tuning.final = kernel
            else:
                tuning.candidates.append((tuning.trying, kernel))
            return
        known = self._known.get((kernel, None))
        tuner = self._tuners.get(kernel.function)
        if known is None and tuner is not None:
            # An engine that remembers the tuner's choice goes past it; the tuner still decides
            # which candidates there are, so it is asked with the same arguments.
            named = dict(zip(kernel.function.arg_names, values, strict=True))
            for config in tuner.configs:
                for name in config.kwargs:
                    named.pop(name, None)
            order = self._orders.get(tuner, tuple(named))
            tuner.run(grid=(1, 1, 1), warmup=False, **{name: named[name] for name in order})
            return
        self.report(known or self._remember(kernel, None, _plain(kernel)))

    def tuned(self, tuner: Any, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """One launch through an autotuner, each candidate of it once."""
        own = [name for name in kwargs if name in tuner.arg_names]
        self._orders[tuner] = (*tuner.arg_names[: len(args)], *own)
        returned, tuning = self._run(tuner, run, args, kwargs)
        kernel = tuning.final
        if kernel is None:
            return returned
        # One kernel may be tuned for several values that are no part of it, such as sizes.
        key = tuner.cache.asked
        known = self._known.get((kernel, key))
        if known is None and len(tuner.configs) > 1 and not tuning.candidates:
            tuner.cache.clear()
            returned, tuning = self._run(tuner, run, args, kwargs)
            assert tuning.final is not None
            kernel = tuning.final
        known = known or self._remember(kernel, key, _tuned(tuning, kernel))
        self._known.setdefault((kernel, None), known)
        self.report(known)
        return returned

    def _run(
        self, tuner: Any, run: Callable[..., Any], args: Any, kwargs: Any
    ) -> tuple[Any, _Tuning]:
        tuning = _Tuning()
        self._tunings.append(tuning)
        try:
            return run(tuner, *args, **kwargs), tuning
        finally:
            self._tunings.pop()

    def attempted(self, tuner: Any, args: Any, config: Any, named: Any) -> list[float]:
        """Stands for the measurement of one candidate; the earlier, the faster it seems."""
        tuning = self._tunings[-1]
        tuning.trying = config
        try:
            tuner.fn.run(*args, **named, **config.all_kwargs())
        finally:
            tuning.trying = None
        return [float(len(tuning.candidates))] * 3

    def looked_up(self, result: TuningResult) -> None:
        if self._tunings:
            self._tunings[-1].result = result

    def _remember(self, kernel: _Kernel, key: Any, made: CapturedLaunch) -> CapturedLaunch:
        self._known[kernel, key] = made
        return made


@contextmanager
def capturing(report: Callable[[CapturedLaunch], None]) -> Iterator[Capture]:
    """Report launches in place of making them until the end of the block.

    Modules with autotuned kernels are to be imported inside the block. The driver has to be a
    stand-in. Raises BuildError, out of the launch, for what no bundle can hold.
    """
    capture = Capture(report)
    before = JITFunction._do_compile, Autotuner.__init__, Autotuner.run, Autotuner._bench
    compile_, construct, run, bench = before

    def do_compile(
        function: Any, key: Any, signature: Any, device: Any, constants: Any, options: Any,
        attributes: Any, warmup: bool,
    ) -> _Kernel:  # fmt: skip
        # The parameters of `_do_compile`, and the five of a device's caches: 3.6.0 to 3.9.0.
        kernels, _, _, backend, _ = function.device_caches[device]
        source = ASTSource(function, signature, constants, attributes)
        named = get_cache_key(source, backend, options, get_cache_invalidating_env_vars())
        launch, configuration = describe(function, signature, constants, attributes, options,
                                          backend)  # fmt: skip
        candidate = CapturedCandidate(
            configuration, hashlib.sha256(named.encode()).hexdigest(), launch_key=key
        )
        kernel = _Kernel(function, launch, str(function.cache_key), candidate, capture)
        kernels[key] = kernel
        return kernel

    def init(tuner: Any, *args: Any, **kwargs: Any) -> None:
        construct(tuner, *args, **kwargs)
        tuner.cache_results = True
        tuner.cache = _Choices()
        bare = tuner.fn
        while not isinstance(bare, JITFunction):
            bare = bare.fn
        capture.tuner_of(bare, tuner)

    def run_tuner(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        return capture.tuned(tuner, run, args, kwargs)

    def try_candidate(tuner: Any, *args: Any, config: Any, **meta: Any) -> list[float]:
        return capture.attempted(tuner, args, config, meta)

    class LookUps(_NoCache):
        told = capture

    with knobs.cache.scope():
        knobs.cache.manager_class = LookUps
        JITFunction._do_compile = do_compile
        Autotuner.__init__, Autotuner.run, Autotuner._bench = init, run_tuner, try_candidate
        try:
            yield capture
        finally:
            JITFunction._do_compile = compile_
            Autotuner.__init__, Autotuner.run, Autotuner._bench = construct, run, bench


class _Choices(dict[Any, Any]):
    """A tuner's choices, which remember the key that a launch asked for (3.6.0 to 3.9.0)."""

    asked: Any = None

    def __contains__(self, key: object) -> bool:
        self.asked = key
        return super().__contains__(key)


class _NoCache:
    """A cache manager that has nothing, keeps nothing, and tells which tuning is looked up."""

    told: Capture

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        self._key = key

    def get_file(self, filename: str) -> None:
        return None

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        if filename.endswith(".autotune.json"):
            # Triton gives its managers the key in base 32 without padding (3.6.0 to 3.9.0).
            padded = self._key + "=" * (-len(self._key) % 8)
            tuning_key = json.dumps(json.loads(data)["key"])
            self.told.looked_up(TuningResult(b32decode(padded).hex(), filename, tuning_key))
        return filename

    def get_group(self, filename: str) -> None:
        return None

    def put_group(self, filename: str, group: Any) -> str:
        return filename


def _plain(kernel: _Kernel) -> CapturedLaunch:
    return CapturedLaunch(
        kernel.launch,
        kernel.source_sha256,
        (kernel.candidate,),
        text=kernel_text(kernel.function),
    )


def _tuned(tuning: _Tuning, final: _Kernel) -> CapturedLaunch:
    """The launch without what its candidates choose, which is what differs between them."""
    tried = tuning.candidates or [(None, final)]
    own = {name for config, _ in tried if config is not None for name in config.kwargs}
    first = dict(tried[0][1].launch.constexprs)
    for _, kernel in tried[1:]:
        own |= {name for name, value in kernel.launch.constexprs if first[name] != value}
    candidates = tuple(
        CapturedCandidate(
            Configuration(
                tuple(sorted((n, v) for n, v in kernel.launch.constexprs if n in own)),
                kernel.candidate.configuration.num_warps,
                kernel.candidate.configuration.num_stages,
                kernel.candidate.configuration.maxnreg,
            ),
            kernel.candidate.key,
            "" if config is None or config.pre_hook else json.dumps(vars(config), sort_keys=True),
            kernel.candidate.launch_key,
        )
        for config, kernel in tried
    )
    launch = tried[0][1].launch
    fixed = tuple((name, value) for name, value in launch.constexprs if name not in own)
    result = tuning.result
    if result is None and len(tried) > 1:
        result = TuningResult(reason="a candidate has a pre_hook, which Triton does not store")
    return CapturedLaunch(
        Launch(launch.kernel, fixed, launch.arguments, launch.options),
        final.source_sha256,
        candidates,
        result,
        kernel_text(final.function),
    )
