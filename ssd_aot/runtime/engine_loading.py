"""An engine's kernels put into Triton's hands: identity first, then look-ups, then the kernels."""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass

from ssd_aot.bundle.choosing import choose_target
from ssd_aot.bundle.manifest import TargetEntry, VariantEntry
from ssd_aot.bundle.store import Bundle
from ssd_aot.errors import BundleError, MismatchError
from ssd_aot.runtime.accepting import accept, refuse_changed
from ssd_aot.runtime.guard import watch_measurements
from ssd_aot.runtime.strictness import refuse_gaps, strict_by_environment
from ssd_aot.runtime.triton_service import BUNDLE, MANAGER, SERVICE, Served


@dataclass(frozen=True)
class LoadedEngineBundle:
    """A bundle of an engine's kernels in service of this process's Triton."""

    bundle: Bundle

    def preload(
        self,
        serves: Callable[[VariantEntry], bool] = lambda entry: True,
        *,
        load_modules: bool = True,
    ) -> int:
        """Put the kernels of the current device where Triton keeps those that it has launched
        before, their modules loaded and their functions resolved; returns how many.

        For after the engine was imported and its device set. A launch then finds its kernel as a
        second launch does; without `load_modules` it has the module to load. Raises MismatchError
        where no target of the bundle is for the device.
        """
        from ssd_aot.triton_compat.preloading import preload_kernel, preload_tuning

        files = self.bundle.manifest.triton
        assert files is not None
        target = _target_here(self.bundle)
        entries = {
            (entry.target, entry.variant.identity): entry
            for entry in self.bundle.manifest.variants
            if serves(entry)
        }
        count = 0
        for kernel in files.kernels:
            entry = entries.get((kernel.target, kernel.variant))
            if (
                entry is not None
                and kernel.target == target.name
                and _imported(entry.launch.kernel)
            ):
                count += preload_kernel(
                    entry, kernel.key, kernel.launch_key, load_module=load_modules
                )
        for tuning in files.tunings:
            if tuning.target == target.name and _imported(tuning.kernel):
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
        named = (asked.target, asked.variant)
        entries = self.bundle.manifest.variants
        first = next((e for e in entries if (e.target, e.variant.identity) == named), None)
        if first is None:  # A candidate that does not fit tells no model.
            return
        served_models = _models(first)
        # What was recorded is of no model: all of it is the program's.
        self.preload(
            lambda entry: (
                entry != first and (not entry.signatures or bool(_models(entry) & served_models))
            )
        )


def _models(entry: VariantEntry) -> set[tuple[str, str]]:
    """(model, "tpN") of the signatures that need the variant."""
    return {tuple(name.split("/", 2)[:2]) for name in entry.signatures}  # type: ignore[misc]


def _imported(kernel: str) -> bool:
    """Kernels of modules that the engine has not imported are not its own today."""
    from ssd_aot.triton_compat.kernel import loaded_module

    return loaded_module(kernel.partition(":")[0]) is not None


def _target_here(bundle: Bundle) -> TargetEntry:
    """Raises MismatchError where no target of the bundle is for the current device."""
    from ssd_aot.triton_compat.preloading import current_arch

    target, _ = choose_target(bundle.manifest.targets, current_arch(), "the current device")
    return target


def load_engine(
    bundle: Bundle,
    *,
    strict: bool = False,
    named: str | os.PathLike[str] | None = None,
    device_in_use: bool = False,
) -> LoadedEngineBundle:
    """Let Triton find the kernels and tuning results of `bundle` in this process and its children.

    Children that are started afresh find it by the path it was `named` by. Touches no GPU but with
    `device_in_use`. Raises MismatchError, naming the part that differs, for a bundle of another
    toolchain, platform or Python, and for one that is not for the device in use; BundleError for
    one that was changed. Then nothing of this process is different.
    """
    check_identity(bundle)
    refuse_changed(bundle)
    if device_in_use:
        _target_here(bundle)
    _take_version(bundle)
    from ssd_aot.triton_compat import EXTENSION_SUFFIX, driver_source
    from ssd_aot.triton_compat.preloading import ready_for_look_ups

    driver = driver_source()
    served = Served.of(bundle, EXTENSION_SUFFIX, {driver.name: driver.sha256})
    if not SERVICE.served:
        atexit.register(SERVICE.say_if_unused)
    SERVICE.start(served, strict=strict or strict_by_environment())
    install()
    # What Triton's first look-up would work out: here no request waits for it.
    ready_for_look_ups({target.compute_capability for target in bundle.manifest.targets})
    # One that is not whole is accepted by this call alone.
    if not os.environ.get(BUNDLE) and bundle.manifest.complete:
        os.environ[BUNDLE] = os.path.realpath(named or bundle.path)
    return LoadedEngineBundle(bundle)


def _take_version(bundle: Bundle) -> None:
    """Accepted by content, a bundle can have been made by a Triton that calls itself otherwise."""
    from ssd_aot.triton_compat.toolchain import take_version

    version = bundle.manifest.toolchain.triton_version
    others = {one.bundle.manifest.toolchain.triton_version for one in SERVICE.served} - {version}
    if others:
        raise MismatchError(
            "Triton can look kernels up for one version string alone",
            where=str(bundle.path),
            found=f"built by Triton {version}",
            wanted=f"Triton {', '.join(others)}, as the bundle that is in service",
            mend="build both in one image",
        )
    take_version(version)


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
    if strict_by_environment():
        refuse_gaps(bundle)
    # Wherever this process or a child of it goes, it means the same folder.
    os.environ[BUNDLE] = os.path.realpath(path)
    loaded = load_engine(bundle, named=path)
    SERVICE.by_environment = True
    SERVICE.when_first_used = loaded.preload_with
    return loaded


def install() -> None:
    """Triton's look-ups go through bundles and its autotuners read results, in this process and,
    by the environment, in those it starts."""
    from triton import knobs

    cache = importlib.import_module("ssd_aot.runtime.triton_cache")
    knobs.cache.manager_class = cache.BundleCacheManager
    knobs.autotuning.cache = True
    os.environ["TRITON_CACHE_MANAGER"] = MANAGER
    os.environ["TRITON_CACHE_AUTOTUNING"] = "1"
    from triton.runtime.autotuner import Autotuner

    from ssd_aot.triton_compat.autotuned import launch_directly

    launch_directly()
    watch_measurements()
    # An autotuner reads the setting once, when it is made (3.6.0 to 3.9.0).
    for found in gc.get_objects():
        # Asked by its type: an instance may answer for its class with a warning.
        if issubclass(type(found), Autotuner):
            found.cache_results = True


def check_identity(bundle: Bundle) -> None:
    """Raises MismatchError that names the parts of the toolchain that differ, and of the first both
    values."""
    from ssd_aot.triton_compat.toolchain import same_toolchain, toolchain

    differences = same_toolchain(toolchain(of_engine=True), bundle.manifest.toolchain)
    if differences:
        first, *others = differences
        more = f" (and in {', '.join(other.field for other in others)})" if others else ""
        raise MismatchError(
            f"kernels of source `{bundle.manifest.source.name}` were built with another toolchain, "
            f"which differs in toolchain.{first.field}{more}",
            where=str(bundle.path),
            found=f"{first.found} (this host)",
            wanted=f"{first.wanted} (the bundle)",
            mend="build the bundle in the image that serves it",
        )
