"""The plug-in that vLLM finds by its entry point `vllm.general_plugins` and calls in every process.

It runs in the API server, the engine core and each worker before a device is set, so it touches no
GPU: modules load at the first look-up, which is vLLM's own warm-up of the scan. `SSD_AOT_BUNDLE`
names the bundle; without it nothing happens.
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from ssd_aot.errors import UsageError
from ssd_aot.runtime.accepting import accept
from ssd_aot.runtime.triton_service import BUNDLE, KERNELS

OPERATION = "vllm.model_executor.layers.mamba.ops.ssd_combined"
MIXER = "vllm.model_executor.layers.mamba.mamba_mixer2"
NAME = "mamba_chunk_scan_combined_varlen"


def register() -> None:
    """Put what `SSD_AOT_BUNDLE` names in service: vLLM's own kernels, or with
    `SSD_AOT_KERNELS=builtin` the builtin operation in the place of vLLM's.

    Raises BundleError or MismatchError for a bundle that cannot serve, UsageError for one of
    another kind than `SSD_AOT_KERNELS` asks for.
    """
    path = os.environ.get(BUNDLE, "")
    if not path:
        return
    kernels = os.environ.get(KERNELS, "")
    if kernels not in ("", "builtin", "engine"):
        raise UsageError(
            "not a kind of kernels",
            where=KERNELS,
            found=kernels,
            wanted="builtin, engine or nothing",
            mend="unset it for vLLM's own",
        )
    bundle = accept(path)
    source = bundle.manifest.source.name
    if kernels == "builtin":
        _refuse_source(source, "builtin", "build one with --source builtin")
        _take_the_place_of_the_operation(bundle.path)
    else:
        # A recording of vLLM holds its kernels as well, and those of everything else in it.
        if source != "recording":
            mend = f"build one with --source vllm, or set {KERNELS}=builtin"
            _refuse_source(source, "vllm", mend)
        from ssd_aot.runtime.engine_loading import load_from_environment

        load_from_environment()


def _refuse_source(found: str, wanted: str, mend: str) -> None:
    if found != wanted:
        raise UsageError(
            "the bundle is of another kind than is asked for",
            where=BUNDLE,
            found=f"kernels of source {found}",
            wanted=f"kernels of source {wanted}",
            mend=mend,
        )


def _take_the_place_of_the_operation(path: Path) -> None:
    """Modules that imported vLLM's operation by name hold it themselves; the mixer is the one."""
    operation = importlib.import_module(OPERATION)
    stand_in = _loading_at_first_call(path)
    for module in (operation, sys.modules.get(MIXER)):
        if module is not None:
            setattr(module, NAME, stand_in)


def _loading_at_first_call(path: Path) -> Any:
    """The builtin operation, which loads the bundle onto the device that is current then."""
    loaded = False

    def mamba_chunk_scan_combined_varlen(*args: Any, **kwargs: Any) -> Any:
        nonlocal loaded
        import ssd_aot

        if not loaded:
            ssd_aot.load(path)
            loaded = True
        return ssd_aot.ops.mamba_chunk_scan_combined_varlen(*args, **kwargs)

    return mamba_chunk_scan_combined_varlen
