"""`load`: a bundle checked against the devices here, its modules loaded, ready to launch."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ssd_aot.bundle.choosing import choose_target
from ssd_aot.bundle.store import Bundle
from ssd_aot.errors import HostError, MismatchError, UsageError
from ssd_aot.layouts import Blocking, Counts, Form, FormRule, ScanLayout
from ssd_aot.operation import launch_abi, launches
from ssd_aot.ops import recall
from ssd_aot.ops.execution import serve
from ssd_aot.runtime import driver
from ssd_aot.runtime.accepting import accept, refuse_changed
from ssd_aot.runtime.device_modules import DeviceModules
from ssd_aot.runtime.launcher import PreparedScan
from ssd_aot.runtime.missing import missing_launch
from ssd_aot.runtime.selection import Selection
from ssd_aot.runtime.strictness import refuse_gaps, strict_by_environment
from ssd_aot.runtime.warming import warm_up
from ssd_aot.targets import target_for_device

if TYPE_CHECKING:
    from ssd_aot.runtime.engine_loading import LoadedEngineBundle


class LoadedBundle:
    """A bundle in service: the executor of `ssd_aot.ops` for CUDA tensors."""

    blocking = Blocking()

    def __init__(self, bundle: Bundle, modules: Mapping[int, DeviceModules]) -> None:
        self.bundle = bundle
        self._modules = dict(modules)
        self._prepared: dict[tuple[int, ScanLayout, Form], PreparedScan] = {}

    @property
    def targets(self) -> dict[int, str]:
        """The target served on each device, by device index."""
        return {index: modules.target.name for index, modules in self._modules.items()}

    def rule_on(self, device: int) -> FormRule:
        """The rule by which a batch's form follows on that device."""
        return self._modules[device].rule

    def run(self, tensors: Mapping[str, Tensor], layout: ScanLayout, counts: Counts) -> None:
        """Launch one scan on the tensors' device and its current stream."""
        modules = self._of(tensors["x"].device)
        index = modules.device.index
        prepared = self.prepare(index, layout, modules.rule.choose(layout, counts))
        addresses = [tensor.data_ptr() for tensor in tensors.values()]
        with torch.cuda.device(index):
            prepared(addresses, counts, torch._C._cuda_getCurrentRawStream(index))

    def remember(
        self,
        given: tuple[Tensor | None, ...],
        layout: ScanLayout,
        chunk_size: int,
        dt_softplus: bool,
        dt_limit: tuple[float, float],
    ) -> None:
        """Let calls like this one go straight to their launches (see `ops.recall`)."""
        assert given[0] is not None
        modules = self._of(given[0].device)
        index = modules.device.index
        prepare = partial(self.prepare, index, layout)
        call = recall.RememberedCall(given, layout, modules.rule, index, prepare)
        recall.remember(call, given, chunk_size, dt_softplus, dt_limit)

    def bare_launches(
        self, device: int, layout: ScanLayout, counts: Counts
    ) -> tuple[tuple[Callable[..., int], tuple[object, ...]], ...]:
        """The driver calls of the last such scan alone (see `PreparedScan.bare_launches`)."""
        form = self._modules[device].rule.choose(layout, counts)
        return self.prepare(device, layout, form).bare_launches()

    def _of(self, device: torch.device) -> DeviceModules:
        modules = self._modules.get(device.index) if device.type == "cuda" else None
        if modules is None:
            raise UsageError(
                "the loaded bundle does not serve this device",
                where="x",
                found=str(device),
                wanted=", ".join(f"cuda:{index}" for index in self._modules),
                mend="move the tensors, or name the device in load(devices=…)",
            )
        return modules

    def prepare(self, device: int, layout: ScanLayout, form: Form) -> PreparedScan:
        """The prepared scan of a layout and form. Raises `MissingLaunchError`."""
        key = (device, layout, form)
        prepared = self._prepared.get(key)
        if prepared is not None:
            return prepared
        modules = self._modules[device]
        variants = []
        for launch in launches(layout, form):
            variant = modules.find(launch)
            if variant is None:
                raise missing_launch(self.bundle.manifest, modules.target.name, layout, launch)
            variants.append(variant)
        names = [name for name, _ in layout.types]
        prepared = PreparedScan(modules.queue, layout, form, variants, names)
        self._prepared[key] = prepared
        return prepared


def load(
    path: str | os.PathLike[str],
    *,
    models: Sequence[str] | None = None,
    tp: int | None = None,
    devices: Collection[int] | None = None,
    warm: bool = False,
    strict: bool = False,
    digest: str | None = None,
    allow_incomplete: bool = False,
) -> LoadedBundle | LoadedEngineBundle:
    """Put a bundle into service in this process: builtin kernels for `ssd_aot.ops`, an engine's own
    for Triton.

    `models` and `tp` restrict it to the signatures of those models and that tensor-parallel size
    (None: all); `devices` are CUDA device indices (None: the current one). With `warm` every
    module is loaded and every signature called now, as an engine's mixer shapes its tensors; else
    modules load when first launched. `strict`, which SSD_AOT_STRICT=1 asks for as well, wants
    a target measured on this very GPU model, where a borrowed one is refused, and every launch that
    the build planned for the signatures named. `digest` pins the bundle, and so does
    SSD_AOT_DIGEST in the environment; the two must not differ.

    For an engine's kernels `strict` makes Triton's compilations and tunings errors in this process.
    Those of the modules that the engine has imported are looked up now for the current device, if
    there is one in use; with `warm` their modules are loaded onto it and the engine's operation is
    called under every signature, into memory of its own.

    Raises `BundleError` for a bundle that is not whole or was changed, or that lacks what `strict`
    wants, `MismatchError` for one that is not for this device, launch interface or digest,
    `UsageError` for models it lacks and for a pin that is none.
    """
    bundle = accept(path, digest, allow_incomplete=allow_incomplete)
    manifest = bundle.manifest
    strict = strict or strict_by_environment()
    selection = Selection.of(manifest, models, tp)
    if strict:
        refuse_gaps(bundle, selection)
    if manifest.triton is not None:
        return _load_engine(bundle, path, selection, warm, strict)
    if manifest.launch_abi != launch_abi():
        raise MismatchError("the bundle was built for another launch interface", where=str(path),
                            found=manifest.launch_abi, wanted=launch_abi(),
                            mend="rebuild the bundle with this release of ssd-aot")  # fmt: skip
    refuse_changed(bundle)
    indices = [_current_device()] if devices is None else sorted(devices)
    modules: dict[int, DeviceModules] = {}
    for index in indices:
        device = driver.device(index)
        known = target_for_device(device.name, device.capability)
        target, borrowed = choose_target(
            manifest.targets, device.capability, device.name, known.name if known else None
        )
        if borrowed and strict:
            raise MismatchError("the bundle only has choices borrowed from another GPU model",
                                where=f"cuda:{index}", found=device.name, wanted=target.name,
                                mend="build for this GPU, or load without strict")  # fmt: skip
        modules[index] = DeviceModules(bundle, device, target, selection)
    loaded = LoadedBundle(bundle, modules)
    serve(loaded)
    recall.forget()
    if warm:
        signatures = selection.signatures(manifest)
        for index in indices:
            modules[index].load_all()
            with torch.cuda.device(index):
                warm_up(signatures, torch.device("cuda", index))
    return loaded


def _load_engine(
    bundle: Bundle,
    path: str | os.PathLike[str],
    selection: Selection,
    warm: bool,
    strict: bool,
) -> LoadedEngineBundle:
    from ssd_aot.runtime.engine_loading import load_engine
    from ssd_aot.runtime.engine_warming import warm_up_engine

    device = torch.device("cuda", _current_device()) if warm else None
    # Without a device there is nothing to look up for yet, and none is touched to find out.
    in_use = warm or torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    loaded = load_engine(bundle, strict=strict, named=path, device_in_use=in_use)
    if in_use:
        loaded.preload(selection.needs, load_modules=warm)
    if device is not None:
        warm_up_engine(bundle.manifest.source.name, selection.signatures(bundle.manifest), device)
    return loaded


def _current_device() -> int:
    try:
        return torch.cuda.current_device()
    except (AssertionError, RuntimeError) as error:
        raise HostError(
            "a bundle is loaded for a CUDA GPU",
            where="ssd_aot.load",
            found=str(error),
            wanted="a GPU, its driver, and a torch with CUDA",
            mend="load it on the serving host",
        ) from error
