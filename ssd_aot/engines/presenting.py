"""A GPU that is not here, presented to Triton and torch before an engine is imported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from ssd_aot.targets import Target
from ssd_aot.triton_compat import presented_to_triton

DISPLAY_NAMES = {"rtx-4090": "NVIDIA GeForce RTX 4090", "rtx-5090": "NVIDIA GeForce RTX 5090",
                 "rtx-pro-6000": "NVIDIA RTX PRO 6000 Blackwell Server Edition"}  # fmt: skip


def device_name(target: Target) -> str:
    """A name as CUDA reports it, for code that chooses by it."""
    return DISPLAY_NAMES.get(target.name, f"NVIDIA {target.name.upper()}")


@contextmanager
def presented(target: Target) -> Iterator[None]:
    """Triton and torch answer for `target` until the end of the block.

    For a process of its own: what an engine works out at its import stays. Tensors remain on the
    meta device; `torch.cuda` answers questions about the GPU and guards nothing.
    """
    properties = SimpleNamespace(
        name=device_name(target),
        major=target.capability[0],
        minor=target.capability[1],
        multi_processor_count=target.multiprocessors,
        shared_memory_per_block_optin=target.shared_bytes_optin,
        warp_size=32,
        total_memory=0,
    )
    answers: dict[str, Any] = {
        "current_device": lambda: 0,
        "device": lambda *_: nullcontext(),
        "device_count": lambda: 1,
        "get_device_capability": lambda *_: target.capability,
        "get_device_name": lambda *_: properties.name,
        "get_device_properties": lambda *_: properties,
        "is_available": lambda: True,
        "set_device": lambda *_: None,
    }
    # Set and empty, it tells vLLM that a missing driver is no reason to do without Triton
    # (vllm/triton_utils/importing.py, 0.33); set to what it was, it changes nothing.
    visible = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "")}
    with ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, visible))
        stack.enter_context(presented_to_triton(target))
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        # SGLang asks for the module of a tensor's device; the meta device has none.
        stack.enter_context(mock.patch.object(torch, "get_device_module", lambda *_: torch.cuda))
        yield
