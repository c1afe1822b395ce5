"""vLLM's plug-in, on a stand-in for vLLM: what `SSD_AOT_BUNDLE` names is put in service in every
process and touches no GPU there."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_bundles import EVEN, rewritten, scan, serving
from forked import forked
from triton import knobs
from triton.runtime.driver import driver

import ssd_aot
from ssd_aot.bundle.store import Bundle
from ssd_aot.errors import BundleError, MismatchError, SsdAotError, UsageError
from ssd_aot.runtime.triton_service import SERVICE
from ssd_aot.runtime.vllm_plugin import MIXER, NAME, OPERATION, register

FILES = {
    OPERATION: f"def {NAME}(*arguments, **named): return 'theirs'\n",
    MIXER: f"from {OPERATION} import {NAME}\n"
    f"def forward(*arguments, **named): return {NAME}(*arguments, **named)\n",
}


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package with vLLM's operation and its mixer in their places; none is imported yet."""
    for name, text in FILES.items():
        place = tmp_path / "site" / Path(*name.split(".")).with_suffix(".py")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))


def registered(work: Callable[[], Any], **environment: str | Path | None) -> Any:
    """What `work` returns in a process of vLLM's, after the plug-ins were called there."""

    def run() -> Any:
        register()
        return work()

    variables = {"SSD_AOT_BUNDLE": None, "SSD_AOT_KERNELS": None, **environment}
    texts = {name: None if value is None else str(value) for name, value in variables.items()}
    return forked(run, **texts)


def refusal(**environment: str | Path) -> SsdAotError:
    def run() -> SsdAotError | None:
        try:
            register()
        except SsdAotError as error:
            return error
        return None

    error = forked(run, **{name: str(value) for name, value in environment.items()})
    assert isinstance(error, SsdAotError)
    return error


def test_vllm_finds_it_by_its_entry_point() -> None:
    (found,) = importlib.metadata.entry_points(group="vllm.general_plugins", name="ssd_aot")

    assert found.load() is register


@pytest.mark.parametrize("named", [None, ""])
def test_without_a_bundle_named_nothing_happens(named: str | None, vllm: None) -> None:
    def work() -> None:
        assert SERVICE.served == []
        assert "vllm" not in sys.modules
        assert knobs.cache.manager_class is None

    registered(work, SSD_AOT_BUNDLE=named, SSD_AOT_KERNELS="builtin")


@pytest.mark.parametrize("kernels", [None, "engine"])
def test_the_engines_own_kernels_are_served(kernels: str | None, engine_bundle: Path) -> None:
    def work() -> list[str]:
        with serving() as (op, here):
            scan(op, EVEN)
            return here.loaded

    loaded = registered(
        work, SSD_AOT_BUNDLE=engine_bundle, SSD_AOT_KERNELS=kernels, SSD_AOT_STRICT="1"
    )

    assert len(loaded) == 7


class NoGpu:
    """A driver that must not be asked."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the plug-in asked Triton's driver for {name}")


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("the plug-in asked torch for a GPU")


@pytest.mark.parametrize("kernels", ["engine", "builtin"])
def test_no_gpu_is_touched(
    kernels: str, engine_bundle: Path, three_targets: Path, vllm: None
) -> None:
    """It runs before a worker has set its device: a context would be made on the first GPU."""

    def work() -> None:
        for name, value in list(vars(torch.cuda).items()):
            if isinstance(value, types.FunctionType):
                setattr(torch.cuda, name, refuse)
        driver.set_active(NoGpu())
        bundle = engine_bundle if kernels == "engine" else three_targets
        os.environ.update(SSD_AOT_BUNDLE=str(bundle), SSD_AOT_KERNELS=kernels)
        register()

    forked(work)


WRONG_KIND = {
    "builtin where vLLM's are wanted": ("three_targets", "", "vllm", "SSD_AOT_KERNELS=builtin"),
    "vLLM's where builtin are wanted": ("engine_bundle", "builtin", "builtin", "--source builtin"),
    "another engine's": ("of_sglang", "engine", "vllm", "--source vllm"),
}


@pytest.fixture
def of_sglang(engine_bundle: Path, tmp_path: Path) -> Path:
    source = Bundle.open(engine_bundle).manifest.source
    other = type(source)("sglang", "0.5.23", source.kernels)
    return rewritten(engine_bundle, tmp_path / "b", source=other)


@pytest.mark.parametrize("case", WRONG_KIND)
def test_a_bundle_of_another_kind_is_refused_with_what_would_serve(
    case: str, request: pytest.FixtureRequest, vllm: None
) -> None:
    fixture, kernels, wanted, mend = WRONG_KIND[case]
    bundle = request.getfixturevalue(fixture)

    error = refusal(SSD_AOT_BUNDLE=bundle, SSD_AOT_KERNELS=kernels)

    assert isinstance(error, UsageError)
    assert error.where == "SSD_AOT_BUNDLE"
    assert error.wanted == f"kernels of source {wanted}"
    assert mend in error.mend


def test_an_unknown_kind_of_kernels_is_refused(engine_bundle: Path) -> None:
    error = refusal(SSD_AOT_BUNDLE=engine_bundle, SSD_AOT_KERNELS="buitlin")

    assert isinstance(error, UsageError)
    assert (error.where, error.found) == ("SSD_AOT_KERNELS", "buitlin")


def test_a_bundle_that_is_not_there_or_not_the_pinned_one_ends_the_process(
    engine_bundle: Path, tmp_path: Path
) -> None:
    """It was asked for by name: to serve without it would be a surprise."""
    assert isinstance(refusal(SSD_AOT_BUNDLE=tmp_path / "none"), BundleError)
    assert isinstance(refusal(SSD_AOT_BUNDLE=engine_bundle, SSD_AOT_DIGEST="0" * 64), MismatchError)


@pytest.mark.parametrize("mixer_first", [False, True])
def test_the_builtin_operation_takes_the_place_of_vllms_and_loads_at_its_first_call(
    mixer_first: bool, three_targets: Path, vllm: None, tmp_path: Path
) -> None:
    loads: list[Path] = []
    operation = types.SimpleNamespace(**{NAME: lambda *given, **named: ("ours", given, named)})

    def work() -> None:
        os.chdir(three_targets.parent)
        os.environ.update(SSD_AOT_BUNDLE=three_targets.name, SSD_AOT_KERNELS="builtin")
        module: Any = ssd_aot
        module.load, module.ops = loads.append, operation
        if mixer_first:
            importlib.import_module(MIXER)
        register()
        os.chdir(tmp_path)
        mixer = importlib.import_module(MIXER)
        assert loads == []
        assert mixer.forward(1, chunk_size=256) == ("ours", (1,), {"chunk_size": 256})
        assert mixer.forward(2) == ("ours", (2,), {})
        assert getattr(importlib.import_module(OPERATION), NAME)() == ("ours", (), {})
        assert loads == [three_targets], "once, and by its own path"
        assert SERVICE.served == []

    forked(work)
