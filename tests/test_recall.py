"""Calls like one that ran before: taken with their own counts, or left to the long way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from signature_builders import signature
from torch import Tensor

from ssd_aot.errors import UsageError
from ssd_aot.layouts import TENSORS, Blocking, Counts, Form, FormRule, ScanLayout
from ssd_aot.ops import recall as recall_module
from ssd_aot.ops.execution import executing
from ssd_aot.ops.recall import (
    Given,
    PreparedForm,
    RememberedCall,
    call_key,
    forget,
    remember,
)
from ssd_aot.ops.scanning import scan
from ssd_aot.problems import make_problem
from ssd_aot.signatures import Signature

PACKED = signature(nheads=2, headdim=16, dstate=16, ngroups=1, num_seqs=(1, 8))
ROWS = signature(nheads=2, headdim=16, dstate=16, ngroups=1, num_seqs=(1, 8), is_cont_batched=False)
CHECKPOINTS = signature(
    nheads=2, headdim=16, dstate=16, ngroups=1, num_seqs=(1, 8), intermediate_states=True
)


@dataclass
class Executor:
    """Takes calls as a loaded bundle does, and tells what it was to launch."""

    blocking: Blocking = field(default_factory=Blocking)
    given: Given = ()
    layout: ScanLayout | None = None
    counts: Counts | None = None
    launched: list[tuple[Form, list[int], Counts]] = field(default_factory=list)

    def run(self, tensors: Mapping[str, Tensor], layout: ScanLayout, counts: Counts) -> None:
        self.counts = counts

    def remember(self, given: Given, layout: ScanLayout, *values: Any) -> None:
        self.given, self.layout = given, layout

    def prepare(self, form: Form) -> PreparedForm:
        return lambda addresses, counts, stream: self.launched.append((form, addresses, counts))

    def remembered(self, device: int = 0) -> RememberedCall:
        assert self.layout is not None
        return RememberedCall(self.given, self.layout, FormRule(8, 64), device, self.prepare)


def long_way(s: Signature, lengths: tuple[int, ...]) -> Executor:
    """What a first call of these lengths leaves."""
    executor = Executor()
    with executing(executor):
        make_problem(s, lengths, device="cpu").call()()
    assert executor.layout is not None
    return executor


def replaced(given: Given, name: str, tensor: Tensor | None) -> Given:
    place = TENSORS.index(name)
    return (*given[:place], tensor, *given[place + 1 :])


@pytest.mark.parametrize(
    ("s", "several"),
    [
        (PACKED, [(40,), (300, 20), (7,) * 5, (300, 20)]),
        (CHECKPOINTS, [(40,), (300, 20), (7,) * 5]),
        # Rows of another length lie at another stride.
        (ROWS, [(65,) * 3, (65,) * 5, (65,) * 3]),
    ],
    ids=["packed", "checkpoints", "rows"],
)
def test_calls_of_other_sizes_are_launched_with_their_own_counts(
    s: Signature, several: list[tuple[int, ...]]
) -> None:
    first = long_way(s, (65, 65))
    call = first.remembered()
    for lengths in several:
        other = long_way(s, lengths)
        # New sizes, then the same ones again, then those behind the guard over all of them.
        for _ in range(3):
            assert call.launch(other.given)
            form, addresses, counts = first.launched[-1]
            assert counts == other.counts
            assert addresses == [t.data_ptr() for t in other.given if t is not None]
            assert other.layout is not None
            assert form == FormRule(8, 64).choose(other.layout, counts)
    assert len(first.launched) == 3 * len(several)


def taken_from(given: Given, name: str, longer: Given) -> Given:
    """The call with one tensor of a longer one."""
    return replaced(given, name, longer[TENSORS.index(name)])


@pytest.mark.parametrize("times", [1, 3], ids=["new", "repeated"])
@pytest.mark.parametrize(
    ("s", "name"),
    [
        *((PACKED, n) for n in ("x", "dt", "B", "C", "out", "spans", "initial_states")),
        (PACKED, "final_slots"),
        *((CHECKPOINTS, name) for name in ("last_chunks", "initial_states")),
        *((ROWS, name) for name in ("x", "dt", "B", "C", "out", "initial_states")),
    ],
)
def test_tensors_that_disagree_are_left_to_the_long_way(
    s: Signature, name: str, times: int
) -> None:
    kept, longer = long_way(s, (65, 65)), long_way(s, (70, 70, 70))
    call = kept.remembered()
    for _ in range(times):
        call.launch(kept.given)
    launched = len(kept.launched)

    assert not call.launch(taken_from(kept.given, name, longer.given))
    assert len(kept.launched) == launched


def test_rows_of_another_length_in_one_tensor_are_left_to_the_long_way() -> None:
    kept = long_way(ROWS, (65, 65))
    call = kept.remembered()
    for name in ("x", "dt", "B", "C", "out"):
        assert call.launch(kept.given)
        tensor = kept.given[TENSORS.index(name)]
        assert tensor is not None
        assert not call.launch(replaced(kept.given, name, tensor[:, :-1]))


@pytest.mark.parametrize("name", ["x", "B", "C", "out", "initial_states", "final_states"])
def test_an_address_off_16_bytes_is_left_to_the_long_way(name: str) -> None:
    executor = long_way(PACKED, (65, 65))
    call = executor.remembered()
    tensor = executor.given[TENSORS.index(name)]
    assert tensor is not None and call.launch(executor.given)

    memory = torch.empty(tensor.untyped_storage().nbytes() + 16, dtype=torch.uint8)
    item = tensor.element_size()
    shifted = memory[item : item + memory.numel() - 16].view(tensor.dtype)
    moved = shifted.as_strided(tensor.shape, tensor.stride())

    assert moved.data_ptr() % 16
    assert not call.launch(replaced(executor.given, name, moved))


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("x", lambda t: t.half()),
        ("dt", lambda t: t.contiguous()),
        ("D", lambda t: t[:1].expand(2)),
        ("initial_states", lambda t: t.transpose(1, 2)),
    ],
    ids=["dtype", "row stride", "head stride", "head and row strides"],
)
def test_another_layout_is_left_to_the_long_way(name: str, other: Any) -> None:
    executor = long_way(PACKED, (65, 65))
    call = executor.remembered()
    tensor = executor.given[TENSORS.index(name)]
    assert call.launch(executor.given)
    assert not call.launch(replaced(executor.given, name, other(tensor)))


def test_fewer_slots_than_sequences_are_left_to_the_long_way_and_refused_there() -> None:
    executor = long_way(PACKED, (65, 65))
    with executing(executor):
        scan_packed(replaced(executor.given, "final_slots", None))
    call, given = executor.remembered(), executor.given
    cache = given[TENSORS.index("final_states")]
    assert cache is not None and cache.shape[0] == 3 and call.launch(given)

    few = replaced(given, "final_states", cache[:1])

    assert not call.launch(few)
    with executing(executor), pytest.raises(UsageError, match="fewer slots than sequences"):
        scan_packed(few)


def scan_packed(given: Given) -> None:
    tensors = dict(zip(TENSORS, given, strict=True))
    scan(**tensors, chunk_size=128, dt_softplus=True, dt_limit=(0.0, float("inf")))  # type: ignore[arg-type]


def test_offsets_of_no_sequence_at_all_are_refused() -> None:
    executor = long_way(PACKED, (65, 65))
    spans = executor.given[TENSORS.index("spans")]
    assert spans is not None
    with executing(executor), pytest.raises(UsageError, match="no offsets at all"):
        scan_packed(replaced(executor.given, "spans", spans[:0]))


def test_a_call_takes_the_place_of_one_of_its_layout_on_its_device() -> None:
    forget()
    executors = [long_way(PACKED, lengths) for lengths in ((65, 65), (9, 9), (30,) * 3)]
    values = (128, True, (0.0, float("inf")))
    for executor in executors:
        remember(executor.remembered(), executor.given, *values)
    remember(executors[0].remembered(device=1), executors[0].given, *values)
    kept = recall_module._remembered[call_key(executors[0].given, *values)]
    forget()

    assert [call.device for call in kept] == [1, 0]


def test_the_calls_of_a_replaced_bundle_do_not_come_back() -> None:
    forget()
    one, other = long_way(PACKED, (65, 65)), long_way(replace(PACKED, nheads=4), (65, 65))
    values = (128, True, (0.0, float("inf")))
    for executor in (one, other):
        remember(executor.remembered(), executor.given, *values)
    key = call_key(one.given, *values)
    found = recall_module._remembered[key]
    # Another thread loads a bundle while this one launches.
    found[-1]._prepare = lambda form: lambda *_: forget()

    assert recall_module.recall(one.given, *values)
    assert key not in recall_module._remembered


def test_no_sequences_are_left_to_the_long_way() -> None:
    executor = long_way(PACKED, (65, 65))
    none = [
        t[:0] if t is not None and n in ("x", "dt", "B", "C", "out", "initial_states",
                                         "final_slots") else t
        for n, t in zip(TENSORS, executor.given, strict=True)
    ]  # fmt: skip
    spans = executor.given[TENSORS.index("spans")]
    assert spans is not None
    given = replaced(tuple(none), "spans", spans[:1])
    assert not executor.remembered().launch(given)
