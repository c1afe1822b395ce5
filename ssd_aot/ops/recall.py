"""Calls like one that ran before: checked by torch's own tensor guards, launched at once.

A remembered call holds the layout's prepared scans and a guard over the tensors' types, dtypes,
devices, shapes and strides, with the first dimensions (tokens, batch rows, sequences, slots) left
open. The guard holds no tensor. What it leaves open is compared here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from operator import itemgetter, or_
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

    All layers of a step have the same sizes, so once sizes come twice in a row a second guard,
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
        self._guard = _guard(present, [_open_sizes(name, layout.packed) for name in names])
        self._repeated: _Repeated | None = None
        self._latest: list[int] = []
        of_tokens = [i for i, name in enumerate(names) if name in OF_TOKENS]
        of_sequences = [i for i, name in enumerate(names) if name in OF_SEQUENCES]
        spans = [names.index("spans")] if layout.packed else []
        self._token_tensors, self._sequence_tensors = len(of_tokens), len(of_sequences)
        self._of_tokens = itemgetter(*of_tokens)
        self._open = itemgetter(*of_tokens, *of_sequences, *spans)
        self._packed = layout.packed
        # Those whose addresses' low bits must be zero.
        self._vectorised = itemgetter(*(i for i, n in enumerate(names) if n in VECTORISED))
        self._aligned = layout.aligned
        self._chunk_states = layout.chunk_states
        without_slots = "final_states" in names and "final_slots" not in names
        self._final = names.index("final_states") if without_slots else None
        self.layout = layout
        self.device = device
        self._rule = rule
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
            if not self._guard(*present):
                return False
            repeated = None
        addresses = list(map(_address, present))
        if self._aligned and reduce(or_, self._vectorised(addresses)) & 15:
            return False
        if _current_device() != self.device:
            return False
        if repeated is None:
            repeated = self._look_at(present)
            if repeated is None:
                return False
        repeated.scan(addresses, repeated.counts, _stream_of(self.device))
        return True

    def _look_at(self, present: tuple[Tensor, ...]) -> _Repeated | None:
        """What follows from the sizes of a call of this layout, None where they disagree; kept when
        they repeat."""
        sizes = [tensor.shape[0] for tensor in self._open(present)]
        if not self._packed:
            sizes += [tensor.shape[1] for tensor in self._of_tokens(present)]
        counts = self._counts(sizes)
        if counts is None or self._slots_of(present) < counts.sequences:
            return None
        form = self._rule.choose(self.layout, counts)
        scan = self._forms.get(form)
        if scan is None:
            scan = self._forms[form] = self._prepare(form)
        if sizes != self._latest:
            self._latest = sizes
            return _Repeated(self._guard, counts, scan)
        self._repeated = _Repeated(_guard(present), counts, scan)
        return self._repeated

    def _slots_of(self, present: tuple[Tensor, ...]) -> float:
        """Final states that there is room for; indices of slots are the caller's to keep in range,
        as they lie on the device."""
        return math.inf if self._final is None else present[self._final].shape[0]

    def _counts(self, sizes: list[int]) -> Counts | None:
        """The counts of a call of these sizes, in the order of `_look_at`; None where its tensors
        disagree about them, or there is nothing to launch: the long way says what is wrong."""
        of_tokens, of_sequences = self._token_tensors, self._sequence_tensors
        leading, length = sizes[0], sizes[-1]
        if self._packed:
            spans = sequences = sizes[-1] - 1
            if self._chunk_states:
                sequences = sizes[of_tokens]
            agreed = [leading] * of_tokens + [sequences] * of_sequences + [spans + 1]
            counts = Counts(leading, spans, sequences)
        else:
            agreed = [leading] * (of_tokens + of_sequences) + [length] * of_tokens
            counts = Counts(leading * length, leading, leading, length)
        return counts if sizes == agreed and counts.sequences > 0 else None


class _Repeated(NamedTuple):
    guard: Callable[..., bool]
    counts: Counts
    scan: PreparedForm


def _guard(tensors: Sequence[Tensor], open_sizes: Sequence[int] = ()) -> Callable[..., bool]:
    """torch's guard over the tensors' types, dtypes, devices, strides and sizes, but for as many
    leading dimensions of each as are open."""
    from torch._C._dynamo import guards

    sizes: list[Any] = [list(tensor.shape) for tensor in tensors]
    for size, count in zip(sizes, open_sizes, strict=False):
        size[:count] = [None] * count
    strides: list[Any] = [list(tensor.stride()) for tensor in tensors]
    check: Callable[..., bool] = guards.TensorGuards(
        *tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides
    ).check
    return check


def _open_sizes(name: str, packed: bool) -> int:
    """Leading dimensions of a tensor whose sizes may change from call to call."""
    if name in OF_TOKENS and not packed:
        return 2
    return int(name in OPEN)


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
                if call is not found[0] and _remembered.get(key) is found:
                    # The next layer's call is like this one.
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
    """Keep a call for `recall`, in the place of one of its layout and device; the latest is looked
    at first, and a few a key are kept."""
    key = call_key(given, chunk_size, dt_softplus, dt_limit)
    own = call.layout, call.device
    others = [other for other in _remembered.get(key, ()) if (other.layout, other.device) != own]
    # Another list, for other threads walk the one that is there.
    _remembered[key] = [call, *others][:KEPT_CALLS]


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
