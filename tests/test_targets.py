"""GPU names: what they stand for and which devices they are."""

from __future__ import annotations

import pytest

from ssd_aot.errors import SpecError
from ssd_aot.targets import TARGETS, target, target_for_device

# Name; architecture; Triton's number; opt-in shared bytes.
FACTS = {
    "h100": ("sm_90a", 90, 232448),
    "h200": ("sm_90a", 90, 232448),
    "gh200": ("sm_90a", 90, 232448),
    "b200": ("sm_100a", 100, 232448),
    "gb200": ("sm_100a", 100, 232448),
    "b300": ("sm_103a", 103, 232448),
    "gb300": ("sm_103a", 103, 232448),
    "a100": ("sm_80", 80, 166912),
    "l40s": ("sm_89", 89, 101376),
    "rtx-4090": ("sm_89", 89, 101376),
    "rtx-5090": ("sm_120a", 120, 101376),
    "rtx-pro-6000": ("sm_120a", 120, 101376),
    "gb10": ("sm_121a", 121, 101376),
}


@pytest.mark.parametrize("name", FACTS)
def test_a_name_stands_for_an_architecture_and_its_limits(name: str) -> None:
    entry = target(name.upper())

    assert entry.name == name
    assert (entry.arch, entry.compute_capability, entry.shared_bytes_optin) == FACTS[name]


def test_every_target_is_stated_above() -> None:
    assert {entry.name for entry in TARGETS} == set(FACTS)


# What was written; the mend.
UNKNOWN = {
    "h20": "write h200 or gh200",
    "rtx4090": "write rtx-4090 or rtx-5090",
    "zzz": "write one of these names",
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_name_gets_the_nearest_names(name: str) -> None:
    with pytest.raises(SpecError) as caught:
        target(name)

    assert (caught.value.found, caught.value.mend) == (name, UNKNOWN[name])
    assert "b200" in caught.value.wanted


def test_an_unknown_name_is_told_with_the_option_that_gave_it() -> None:
    with pytest.raises(SpecError) as caught:
        target("h20", "--gpu")

    assert caught.value.where == "--gpu"


# The name that CUDA reports and its compute capability; the target.
DEVICES = {
    ("NVIDIA H100 80GB HBM3", (9, 0)): "h100",
    ("NVIDIA H200", (9, 0)): "h200",
    ("NVIDIA GH200 480GB", (9, 0)): "gh200",
    ("NVIDIA B200", (10, 0)): "b200",
    ("NVIDIA GB200", (10, 0)): "gb200",
    ("NVIDIA B300 SXM6 AC", (10, 3)): "b300",
    ("NVIDIA GB300", (10, 3)): "gb300",
    ("NVIDIA A100-SXM4-80GB", (8, 0)): "a100",
    ("nvidia l40s", (8, 9)): "l40s",
    ("NVIDIA GeForce RTX 4090", (8, 9)): "rtx-4090",
    ("NVIDIA GeForce RTX 5090", (12, 0)): "rtx-5090",
    ("NVIDIA RTX PRO 6000 Blackwell Server Edition", (12, 0)): "rtx-pro-6000",
    ("NVIDIA GB10", (12, 1)): "gb10",
    ("NVIDIA H20", (9, 0)): None,
    ("NVIDIA L40", (8, 9)): None,
    ("NVIDIA GeForce RTX 4090 D", (8, 9)): None,
    ("NVIDIA GeForce RTX 4090 Laptop GPU", (8, 9)): None,
    ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", (9, 0)): None,
    ("NVIDIA H200", (10, 0)): None,
}


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_a_device_is_the_model_it_is_named_after(device: tuple[str, tuple[int, int]]) -> None:
    found = target_for_device(*device)

    assert (found.name if found else None) == DEVICES[device]
