"""New memory filled with NaN: no candidate finds in it what another one left."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_ALLOCATIONS = frozenset(
    {
        torch.ops.aten.empty.memory_format,
        torch.ops.aten.empty_like.default,
        torch.ops.aten.empty_strided.default,
        torch.ops.aten.new_empty.default,
        torch.ops.aten.new_empty_strided.default,
    }
)


class PoisonedMemory(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, what torch allocates without a value holds NaN where its dtype has one:
    intermediate results that a program makes for its kernels."""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in _ALLOCATIONS and isinstance(made, Tensor) and made.is_floating_point():
            made.fill_(float("nan"))
        return made
