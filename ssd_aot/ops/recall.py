"""Calls like one that ran before: checked by torch's own tensor guards, launched at once.

A remembered call holds the layout's prepared scans and a guard over the tensors' types, dtypes,
devices, shapes and strides, with the first dimensions (tokens, batch rows, sequences, slots) left
open. The guard holds no tensor. What it leaves open is compared here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ssd_aot.layouts import TENSORS, VECTORISED, Counts, Form, FormRule, ScanLayout

PreparedForm = Callable[[list[int], Counts, int], None]
"""`PreparedScan.__call__`: addresses, counts, stream."""

OF_TOKENS = frozenset({"x", "dt", "B", "C", "z", "out", "seq_idx"})
OF_SEQUENCES = frozenset({"initial_states", "final_slots", "last_chunks"})
OPEN = OF_TOKENS | OF_SEQUENCES | {"spans", "chunk_states", "final_states"}
"""Tensors whose first dimension may change from call to call."""

Given = tuple[Tensor | None, ...]
Key = tuple[Any, ...]
_remembered: dict[Key, list[RememberedCall]] = {}
_generation = 0
_address = Tensor.data_ptr
_stream_of: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", int)
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", int)


class RememberedCall:
    """One layout on one device. `prepare` makes the prepared scan of a form when first wanted.

    All layers of a step have the same shapes, so once shapes come twice in a row a second guard,
    over every dimension, stands in for reading them.
    """

    def __init__(
        self,
        given: Given,
        layout: ScanLayout,
        rule: FormRule,
        device: int,
        prepare: Callable[[Form], PreparedForm],
    ) -> None:
        names = [n for n, t in zip(TENSORS, given, strict=True) if t is not None]
        present = [t for t in given if t is not None]
        self._select = itemgetter(*(TENSORS.index(name) for name in names))
        self._sizes = [_open_size(n, t, layout.packed) for n, t in zip(names, present, strict=True)]
        self._strides: list[Any] = [list(tensor.stride()) for tensor in present]
        self._guard = _guard(present, self._sizes, self._strides)
        self._repeated: _Repeated | None = None
        self._latest: Counts | None = None
        self._tokens = [i for i, name in enumerate(names) if name in OF_TOKENS and name != "x"]
        self._sequences = [i for i, name in enumerate(names) if name in OF_SEQUENCES]
        # Addresses whose low bits must be zero; none where the layout promises nothing.
        self._vectorised = [i for i, n in enumerate(names) if n in VECTORISED and layout.aligned]
        self._spans = names.index("spans") if layout.packed else 0
        self._chunk_states = layout.chunk_states
        self._layout = layout
        self._rule = rule
        self._device = device
        self._prepare = prepare
        self._forms: dict[Form, PreparedForm] = {}

    def guards(self, given: Given) -> bool:
        """Whether the tensors have this call's types, dtypes, devices, shapes and strides."""
        return self._guard(*self._select(given))

    def launch(self, given: Given) -> bool:
        """Launch if the call is like the remembered one; False, and nothing done, if not."""
        present = self._select(given)
        repeated = self._repeated
        if repeated is None or not repeated.guard(*present):
            repeated = self._look_at(present)
            if repeated is None:
                return False
        addresses = list(map(_address, present))
        together = 0
        for place in self._vectorised:
            together |= addresses[place]
        if together & 15 or _current_device() != self._device:
            return False
        repeated.scan(addresses, repeated.counts, _stream_of(self._device))
        return True

    def _look_at(self, present: tuple[Tensor, ...]) -> _Repeated | None:
        """The call's counts and prepared scan, None for another layout; kept when shapes repeat."""
        counts = self._counts(present) if self._guard(*present) else None
        if counts is None:
            return None
        form = self._rule.choose(self._layout, counts)
        prepared = self._forms.get(form)
        if prepared is None:
            prepared = self._forms[form] = self._prepare(form)
        if counts != self._latest:
            self._latest = counts
            return _Repeated(self._guard, counts, prepared)
        sizes = [
            list(tensor.shape) if size[0] is None else size
            for tensor, size in zip(present, self._sizes, strict=True)
        ]
        self._repeated = _Repeated(_guard(present, sizes, self._strides), counts, prepared)
        return self._repeated

    def _counts(self, present: tuple[Tensor, ...]) -> Counts | None:
        """The call's counts; None where its tensors disagree about them, or there is nothing to
        launch: the long way says what is wrong."""
        tokens = present[0].size(0)
        for place in self._tokens:
            if present[place].size(0) != tokens:
                return None
        if not self._spans:
            return self._batch_counts(present, tokens)
        spans = sequences = present[self._spans].size(0) - 1
        if self._chunk_states:
            sequences = present[self._sequences[0]].size(0)
        for place in self._sequences:
            if present[place].size(0) != sequences:
                return None
        return Counts(tokens, spans, sequences) if sequences else None

    def _batch_counts(self, present: tuple[Tensor, ...], batch: int) -> Counts | None:
        length = present[0].size(1)
        for place in self._tokens:
            if present[place].size(1) != length:
                return None
        for place in self._sequences:
            if present[place].size(0) != batch:
                return None
        return Counts(batch * length, batch, batch, length) if batch else None


class _Repeated(NamedTuple):
    guard: Callable[..., bool]
    counts: Counts
    scan: PreparedForm


def _open_size(name: str, tensor: Tensor, packed: bool) -> list[int | None]:
    """The shape of a remembered call's tensor, None for dimensions that may change."""
    size: list[int | None] = list(tensor.shape)
    if name in OPEN:
        size[0] = None
        if not packed and name in OF_TOKENS:
            size[1] = None
    return size


def _guard(present: Sequence[Tensor], sizes: list[Any], strides: list[Any]) -> Callable[..., bool]:
    """torch's guard over the tensors' types, dtypes, devices, and these sizes and strides."""
    from torch._C._dynamo import guards

    check: Callable[..., bool] = guards.TensorGuards(
        *present, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides
    ).check
    return check


def call_key(
    given: Given, chunk_size: int, dt_softplus: bool, dt_limit: tuple[float, float]
) -> Key:
    """Which tensors are there, and the values that a layout holds beside them."""
    (_, _, _, _, _, D, z, dt_bias, seq_idx, spans, last_chunks, _,
     initial_states, final_states, final_slots, _) = given  # fmt: skip
    return (
        D is None, z is None, dt_bias is None, seq_idx is None, spans is None,
        last_chunks is None, initial_states is None, final_states is None, final_slots is None,
        chunk_size, dt_softplus, dt_limit,
    )  # fmt: skip


def recall(given: Given, chunk_size: int, dt_softplus: bool, dt_limit: tuple[float, float]) -> bool:
    """Launch the call from memory; False when there is none like it."""
    key = call_key(given, chunk_size, dt_softplus, dt_limit)
    found = _remembered.get(key)
    if found is not None:
        for call in found:
            if call.launch(given):
                if call is not found[0]:
                    # The next layer's call is like this one. Another list, for other threads walk
                    # this one.
                    _remembered[key] = [call, *(other for other in found if other is not call)]
                return True
    return False


def latest(
    given: Given, chunk_size: int, dt_softplus: bool, dt_limit: tuple[float, float]
) -> RememberedCall | None:
    """The remembered call whose guard takes these tensors."""
    for call in _remembered.get(call_key(given, chunk_size, dt_softplus, dt_limit), ()):
        if call.guards(given):
            return call
    return None


def remember(
    call: RememberedCall,
    given: Given,
    chunk_size: int,
    dt_softplus: bool,
    dt_limit: tuple[float, float],
) -> None:
    """Keep a call for `recall`; the latest is looked at first, and a few a key are kept."""
    calls = _remembered.setdefault(call_key(given, chunk_size, dt_softplus, dt_limit), [])
    calls.insert(0, call)
    del calls[KEPT_CALLS:]


KEPT_CALLS = 64
"""Layouts kept for one set of arguments: more than the layers' distinct geometries of any model
on all GPUs of a host."""


def forget() -> None:
    """Drop every remembered call: another bundle is in service."""
    global _generation
    _remembered.clear()
    _generation += 1


def generation() -> int:
    """A number that changes when remembered calls were dropped."""
    return _generation
