"""An engine's kernels put into Triton's hands: identity first, then look-ups, then the kernels."""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

from ssd_aot.bundle.manifest import VariantEntry
from ssd_aot.bundle.store import Bundle
from ssd_aot.errors import BundleError, MismatchError
from ssd_aot.runtime.accepting import accept, refuse_changed
from ssd_aot.runtime.triton_service import BUNDLE, SERVICE, STRICT, Served


@dataclass(frozen=True)
class LoadedEngineBundle:
    """A bundle of an engine's kernels in service of this process's Triton."""

    bundle: Bundle

    def preload(self, serves: Callable[[VariantEntry], bool] = lambda entry: True) -> int:
        """Load the modules of the kernels of the current device onto it and resolve their
        functions, where Triton keeps kernels that it has launched before; returns how many.

        For after the engine was imported and its device set. A launch then finds its kernel as a
        second launch does.
        """
        from ssd_aot.triton_compat.preloading import current_arch, preload_kernel, preload_tuning

        files = self.bundle.manifest.triton
        assert files is not None
        arch = current_arch()
        targets = {t.name for t in self.bundle.manifest.targets if t.capability == arch}
        entries = {
            (entry.target, entry.variant.identity): entry
            for entry in self.bundle.manifest.variants
            if serves(entry)
        }
        count = 0
        for kernel in files.kernels:
            entry = entries.get((kernel.target, kernel.variant))
            if entry is not None and kernel.target in targets and _imported(entry):
                count += preload_kernel(entry, kernel.launch_key)
        for tuning in files.tunings:
            if tuning.target in targets and tuning.kernel.partition(":")[0] in sys.modules:
                stored = json.loads((self.bundle.path / tuning.path).read_text())
                preload_tuning(tuning.kernel, stored)
        return count

    def preload_with(self, served: Served, key: str, filename: str) -> None:
        """Preload the kernels that signatures of one model and tensor-parallel size share with the
        kernel that Triton asks for under `key`."""
        if served.bundle.digest != self.bundle.digest:
            return
        files = self.bundle.manifest.triton
        assert files is not None
        asked = next(kernel for kernel in files.kernels if kernel.key == key)
        first = next(
            entry for entry in self.bundle.manifest.variants
            if (entry.target, entry.variant.identity) == (asked.target, asked.variant)
        )  # fmt: skip
        served_models = _models(first)
        self.preload(lambda entry: entry != first and bool(_models(entry) & served_models))


def _models(entry: VariantEntry) -> set[tuple[str, str]]:
    """(model, "tpN") of the signatures that need the variant."""
    return {tuple(name.split("/", 2)[:2]) for name in entry.signatures}  # type: ignore[misc]


def _imported(entry: VariantEntry) -> bool:
    """Kernels of modules that the engine has not imported are not its own today."""
    return entry.launch.kernel.partition(":")[0] in sys.modules


def load_engine(bundle: Bundle, *, strict: bool = False) -> LoadedEngineBundle:
    """Let Triton find the kernels and tuning results of `bundle` in this process and its children.

    Touches no GPU. Raises MismatchError, naming the part that differs, for a bundle of another
    toolchain, platform or Python; BundleError for one that was changed.
    """
    check_identity(bundle)
    refuse_changed(bundle)
    from ssd_aot.triton_compat.host_modules import EXTENSION_SUFFIX, driver_source

    driver = driver_source()
    served = Served.of(bundle, EXTENSION_SUFFIX, {driver.name: driver.sha256})
    if not SERVICE.served:
        atexit.register(SERVICE.say_if_unused)
    SERVICE.start(served, strict=strict or os.environ.get(STRICT, "") not in ("", "0"))
    install()
    return LoadedEngineBundle(bundle)


def load_from_environment() -> LoadedEngineBundle | None:
    """What `SSD_AOT_BUNDLE` names, if it is an engine's; None where there is nothing to load.

    The first kernel that Triton looks up tells which model is served, and that a device is set:
    then the others of the model are loaded as well.
    """
    path = os.environ.get(BUNDLE, "")
    if not path:
        return None
    try:
        bundle = accept(path)
    except BundleError as error:
        error.what = f"{BUNDLE}: {error.what}"
        raise
    if bundle.manifest.triton is None:
        return None
    loaded = load_engine(bundle)
    SERVICE.when_first_used = loaded.preload_with
    return loaded


def install() -> None:
    """Triton's look-ups go through bundles and its autotuners read results, in this process and,
    by the environment, in those it starts."""
    from triton import knobs

    cache = importlib.import_module("ssd_aot.runtime.triton_cache")
    knobs.cache.manager_class = cache.BundleCacheManager
    knobs.autotuning.cache = True
    os.environ["TRITON_CACHE_MANAGER"] = cache.MANAGER
    os.environ["TRITON_CACHE_AUTOTUNING"] = "1"
    from triton.runtime.autotuner import Autotuner

    from ssd_aot.triton_compat.autotuned import launch_directly

    launch_directly()
    # An autotuner reads the setting once, when it is made (3.6.0 to 3.9.0).
    for found in gc.get_objects():
        # Asked by its type: an instance may answer for its class with a warning.
        if issubclass(type(found), Autotuner):
            found.cache_results = True


def check_identity(bundle: Bundle) -> None:
    """Raises MismatchError with the one part of the toolchain that differs, the first of them."""
    from ssd_aot.triton_compat.toolchain import same_toolchain, toolchain

    differences = same_toolchain(toolchain(), bundle.manifest.toolchain)
    if differences:
        first = differences[0]
        more = f" and {len(differences) - 1} more parts" if len(differences) > 1 else ""
        raise MismatchError(
            f"kernels of source `{bundle.manifest.source.name}` were built with another toolchain",
            where=f"toolchain.{first.field}{more}",
            found=f"{first.found} (this host)",
            wanted=f"{first.wanted} (the bundle)",
            mend="build the bundle in the image that serves it",
        )
