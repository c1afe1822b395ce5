"""The guard: what Triton compiles or tunes in this process is told once, or is an error.

It takes no hook, so an engine's own stay as they are, and costs a launch nothing: it looks only
where Triton has found no entry, and where an autotuner measures.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ssd_aot.errors import MissingLaunchError
from ssd_aot.runtime.asked import Asked
from ssd_aot.runtime.nearest import nearest
from ssd_aot.runtime.strictness import STRICT

if TYPE_CHECKING:
    from ssd_aot.bundle.store import Bundle
    from ssd_aot.triton_compat.in_progress import TuningInProgress

LOGGER = logging.getLogger("ssd_aot")
"""Has a line of JSON for each miss; with no logging set up, Python writes it to stderr."""

TUNING = ".autotune.json"
NO_LOOK_UP = "no result can be stored for it: a candidate has a pre_hook, or storing is off"


class Guard:
    """Tells each miss once. `told` are those that were, and `tunings` those whose look-up was."""

    def __init__(self) -> None:
        self.told: set[tuple[str, str]] = set()
        self._tunings: set[tuple[str, str]] = set()

    def missed(self, bundles: Sequence[Bundle], key: str, filename: str, strict: bool) -> None:
        """No bundle and no cache has the file that Triton asks for. Raises MissingLaunchError in
        strict mode."""
        asked = ask(key, filename)
        if asked.tuning_key is not None:
            self._tunings.add((asked.kernel, str(asked.tuning_key)))
        self._tell(bundles, asked, filename, strict)

    def unseen_tuning(self) -> TuningInProgress | None:
        """The tuning that measures a candidate now, where no look-up told of it; each once."""
        from ssd_aot.triton_compat.in_progress import tuning_in_progress

        tuning = tuning_in_progress()
        if tuning is None or (tuning.kernel, str(tuning.key)) in self._tunings:
            return None
        self._tunings.add((tuning.kernel, str(tuning.key)))
        return tuning

    def measured(self, bundles: Sequence[Bundle], tuning: TuningInProgress, strict: bool) -> None:
        """An autotuner measures what it looked up nowhere. Raises MissingLaunchError in strict
        mode."""
        asked = _with_tuning("", tuning)
        self._tell(bundles, asked, f"{asked.kernel}{tuning.key}", strict, NO_LOOK_UP)

    def _tell(
        self, bundles: Sequence[Bundle], asked: Asked, name: str, strict: bool, why: str = ""
    ) -> None:
        if (asked.key, name) in self.told and not strict:
            return
        first = (asked.key, name) not in self.told
        self.told.add((asked.key, name))
        found = why or _nearest_of(bundles, asked)
        if first:
            full = Asked(**{**vars(asked), "nearest": found})
            LOGGER.warning("%s", full.line())
        if strict and bundles:
            raise MissingLaunchError(
                f"Triton would begin a {asked.kind} in this process, and strict mode forbids it",
                where=asked.kernel,
                found=f"key {asked.key or asked.tuning_key}; the nearest: {found}",
                wanted=f"an entry of {bundles[0].path} ({bundles[0].digest[:12]})",
                mend=f"build a bundle that covers it (see ssd-aot explain), or unset {STRICT}",
            )


def _nearest_of(bundles: Sequence[Bundle], asked: Asked) -> str:
    if asked.kind == "host module":
        return "no host module of this name, source and platform"
    found = [nearest(bundle, asked) for bundle in bundles]
    known = [one for one in found if one.entry]
    best = min(known, key=lambda one: len(one.differences)) if known else None
    if best is None:
        return "nothing of this kernel"
    if asked.kind == "tuning":
        return f"tuning key changed for kernel {asked.kernel}: {best}"
    return str(best)


def ask(key: str, filename: str) -> Asked:
    """What the look-up of a file under a key is about, from within it."""
    from ssd_aot.triton_compat.in_progress import compilation_in_progress, tuning_in_progress

    if filename.endswith(TUNING):
        tuning = tuning_in_progress()
        if tuning is not None:
            return _with_tuning(key, tuning)
        return Asked("tuning", filename.removesuffix(TUNING), key)
    if not filename.endswith(".json"):
        return Asked("host module", filename, key)
    compilation = compilation_in_progress()
    if compilation is None:
        return Asked("compilation", filename.removesuffix(".json"), key)
    return _with_compilation(key, compilation)


def _with_tuning(key: str, tuning: TuningInProgress) -> Asked:
    from ssd_aot.triton_compat.in_progress import config_fields

    spelled = tuple(
        json.dumps({**config_fields(config), "pre_hook": None}, sort_keys=True, default=str)
        for config in tuning.configs
    )
    return Asked("tuning", tuning.kernel, key, tuning_key=tuple(tuning.key or ()),
                 candidates=spelled, **_surroundings(tuning.function))  # fmt: skip


def _with_compilation(key: str, compilation: Any) -> Asked:
    from ssd_aot.errors import BuildError

    launch = configuration = None
    # Of a value that has no spelling the kernel and the key are told all the same.
    with suppress(BuildError):
        launch, configuration = compilation.described()
    return Asked("compilation", compilation.kernel, key, launch, configuration,
                 **_surroundings(compilation.function))  # fmt: skip


def _surroundings(function: Any) -> dict[str, Any]:
    from ssd_aot.triton_compat.kernel import kernel_text
    from ssd_aot.triton_compat.preloading import current_arch
    from ssd_aot.triton_compat.toolchain import toolchain

    major, minor = current_arch()
    return {
        "source_sha256": str(function.cache_key),
        "source": kernel_text(function),
        "arch": major * 10 + minor,
        "toolchain": toolchain(of_engine=True),
    }


def watch_measurements() -> None:
    """Let the guard know of every measurement of an autotuner; more than once does nothing."""
    from triton.runtime.autotuner import Autotuner

    from ssd_aot.runtime.triton_service import SERVICE
    from ssd_aot.triton_compat import in_progress  # noqa: F401 - knows the frames of the original

    measure = Autotuner._bench
    if getattr(measure, "ssd_aot_watched", False):
        return

    # (candidate by name, the rest as given): 3.6.0 to 3.9.0.
    def watched(tuner: Any, *args: Any, **kwargs: Any) -> Any:
        SERVICE.measured()
        return measure(tuner, *args, **kwargs)

    watched.ssd_aot_watched = True  # type: ignore[attr-defined]
    Autotuner._bench = watched
