"""vLLM: packed sequences, one kernel chain a layer, as `MambaMixer2` calls it.

Facts of shapes and views are those of vLLM 0.31 to 0.33 (`mamba_mixer2.py`, `mamba_attn.py`).
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ssd_aot.engines.engine import Call
from ssd_aot.engines.operation_modules import OperationEngine
from ssd_aot.engines.presenting import device_name
from ssd_aot.engines.scenarios import Scenario, scenarios
from ssd_aot.engines.serving_calls import PreparedCall, ServingBatch
from ssd_aot.errors import HostError
from ssd_aot.problems import Problem, Results
from ssd_aot.serving_tensors import DTYPES
from ssd_aot.signatures import Signature
from ssd_aot.targets import Target

OPERATION = "vllm.model_executor.layers.mamba.ops.ssd_combined"
PADDED_PAGE_BYTES = 2**20
"""In a hybrid the page of a slot is padded to an attention page, a multiple of much more than 16
bytes; without attention it is as long as its two states."""
NAN = float("nan")
INDEX_COLUMNS = (1, 2)
"""Columns of the table of state slots: one, and one more for each speculative token."""


class Vllm(OperationEngine):
    name = "vllm"
    package = "vllm"

    @contextmanager
    def imported(self, target: Target) -> Iterator[None]:
        platforms: Any = importlib.import_module("vllm.platforms")
        platforms._current_platform = _platform(target)
        operation = importlib.import_module(OPERATION).mamba_chunk_scan_combined_varlen
        kernel = importlib.import_module(
            OPERATION.replace("combined", "chunk_scan")
        )._chunk_scan_fwd_kernel
        if not hasattr(kernel, "fn"):
            raise HostError(
                "vLLM did not take the stand-in for a GPU: its kernels are placeholders",
                where=OPERATION,
                found=type(kernel).__name__,
                wanted="kernels under triton.autotune",
                mend="unset what makes vLLM leave Triton out, such as VLLM_TARGET_DEVICE=cpu",
            )
        with self._holding(operation):
            yield

    def adopt(self) -> bool:
        return self._adopt(OPERATION, "mamba_chunk_scan_combined_varlen")

    def refusal(self, signature: Signature) -> str:
        if not signature.is_cont_batched:
            return "vLLM calls with packed sequences alone (IS_CONT_BATCHED true)"
        if signature.z or signature.seq_idx or signature.layout != "engine":
            return "vLLM's mixer passes neither z nor seq_idx, and its own views"
        if signature.dt_dtype != signature.dtype:
            return "vLLM's mixer slices dt out of the projection: it has the dtype of x"
        if signature.D != "head" or not signature.dt_bias or not signature.dt_softplus:
            return "vLLM's mixer passes D a head, dt_bias and dt_softplus always"
        return ""

    def calls(self, signature: Signature) -> Iterator[Call]:
        accepted = inspect.signature(self._operation).parameters
        for write in (True, False):
            yield partial(self._profile, signature, accepted, write)
        for scenario in scenarios(signature):
            yield from self._serving(signature, scenario, accepted)

    def _profile(self, s: Signature, accepted: Any, write: bool) -> None:
        """The mixer's own warm-up, at the start of the engine: fresh tensors of one chunk."""
        tokens, dtype = s.chunk_size, DTYPES[s.dtype]
        states = _meta(1, s.nheads, s.headdim, s.dstate, dtype=DTYPES[s.state_dtype])
        self._call(
            s, accepted,
            x=_meta(tokens, s.nheads, s.headdim, dtype=dtype),
            dt=_meta(tokens, s.nheads, dtype=dtype),
            B=_meta(tokens, s.ngroups, s.dstate, dtype=dtype),
            C=_meta(tokens, s.ngroups, s.dstate, dtype=dtype),
            out=_meta(tokens, s.nheads, s.headdim, dtype=dtype),
            scenario=Scenario(1, 1, tokens, 0),
            final_states_out=states if write else None,
            final_state_indices=_indices(1) if write else None,
        )  # fmt: skip

    def _serving(self, s: Signature, scenario: Scenario, accepted: Any) -> Iterator[Call]:
        tokens, before = scenario.tokens, scenario.decode_tokens
        inner, state = s.nheads * s.headdim, s.ngroups * s.dstate
        dtype = DTYPES[s.dtype]
        convolved = _meta(tokens, inner + 2 * state, dtype=dtype)
        x, B, C = torch.split(convolved, [inner, state, state], dim=-1)
        projected = _meta(before + tokens, 2 * inner + 2 * state + s.nheads, dtype=dtype)
        call = partial(
            self._call, s, accepted,
            x=x.view(tokens, s.nheads, s.headdim),
            dt=projected[before:, -s.nheads :],
            B=B.view(tokens, s.ngroups, s.dstate),
            C=C.view(tokens, s.ngroups, s.dstate),
            out=_meta(before + tokens, inner, dtype=dtype)[before:].view(
                tokens, s.nheads, s.headdim
            ),
            scenario=scenario,
        )  # fmt: skip
        if s.intermediate_states or "final_states_out" not in accepted:
            yield partial(call, return_intermediate_states=s.intermediate_states)
            return
        for cache in _caches(s):
            for columns in INDEX_COLUMNS:
                slots = _meta(before + scenario.num_seqs, columns, dtype=torch.int32)[before:, 0]
                yield partial(call, final_states_out=cache, final_state_indices=slots)

    def prepare(self, batch: ServingBatch, problem: Problem) -> PreparedCall:
        """The alternate call has a cache in padded pages, and a table of two slots a sequence."""
        s, place, count = problem.signature, problem.x.device, len(problem.lengths)
        accepted = inspect.signature(self._operation).parameters
        before, tokens = batch.decode_tokens, problem.x.shape[0]
        rows = torch.full(
            (before + tokens, s.nheads * s.headdim), NAN, dtype=DTYPES[s.dtype], device=place
        )
        out = rows[before:].view(tokens, s.nheads, s.headdim)
        named = {
            "x": problem.x, "dt": problem.dt, "A": problem.A, "B": problem.B, "C": problem.C,
            "chunk_size": s.chunk_size, "D": problem.D, "z": None, "dt_bias": problem.dt_bias,
            "seq_idx": problem.chunks.owner, "cu_seqlens": problem.cu_seqlens,
            "cu_chunk_seqlens": problem.chunks.ends, "last_chunk_indices": problem.chunks.last,
            "initial_states": problem.initial_states, "dt_softplus": True,
            "dt_limit": problem.dt_limit, "state_dtype": problem.state_dtype, "out": out,
            "return_intermediate_states": s.intermediate_states,
        }  # fmt: skip
        gather = partial(Results, out)
        if batch.final_states and not s.intermediate_states and "final_states_out" in accepted:
            cache = _cache(s, count + 1, batch.alternate, place).fill_(NAN)
            # In reverse, so that states in the order of their sequences are wrong; 0 is nobody's.
            table = torch.zeros(
                before + count, INDEX_COLUMNS[batch.alternate], dtype=torch.int32, device=place
            )
            table[before:, 0] = torch.arange(count, 0, -1, dtype=torch.int32, device=place)
            slots = table[before:, 0]
            named.update(final_states_out=cache, final_state_indices=slots)
            gather = partial(_with_states_of, out, cache, slots.long())
        given = {name: value for name, value in named.items() if name in accepted}
        return PreparedCall(partial(self._operation, **given), gather)

    def _call(self, s: Signature, accepted: Any, *, scenario: Scenario, **tensors: Any) -> None:
        parameters = DTYPES[s.param_dtype]
        initial = _meta(scenario.num_seqs, s.nheads, s.headdim, s.dstate,
                        dtype=DTYPES[s.state_dtype])  # fmt: skip
        named = {
            **tensors,
            "A": _meta(s.nheads, dtype=torch.float32),
            "chunk_size": s.chunk_size,
            "D": _meta(s.nheads, dtype=parameters),
            "z": None,
            "dt_bias": _meta(s.nheads, dtype=parameters),
            "seq_idx": _indices(scenario.chunks),
            "cu_seqlens": _indices(scenario.num_seqs + 1),
            "cu_chunk_seqlens": _indices(scenario.chunks + 1),
            "last_chunk_indices": _indices(scenario.num_seqs),
            "initial_states": initial if s.has_initstates else None,
            "dt_softplus": True,
            "dt_limit": (0.0, float("inf")),
            "state_dtype": DTYPES[s.state_dtype],
        }
        self._operation(**{name: value for name, value in named.items() if name in accepted})


def _with_states_of(out: Tensor, cache: Tensor, slots: Tensor, returned: None) -> Results:
    return Results(out, cache.index_select(0, slots))


def _caches(s: Signature) -> tuple[Tensor, ...]:
    return tuple(_cache(s, 2, padded, torch.device("meta")) for padded in (False, True))


def _cache(s: Signature, slots: int, padded: bool, device: torch.device) -> Tensor:
    """The cache of states in pages that hold the convolution's state before them."""
    convolution = (s.conv_kernel - 1) * (s.nheads * s.headdim + 2 * s.ngroups * s.dstate)
    item = DTYPES[s.state_dtype].itemsize
    offset = convolution * DTYPES[s.dtype].itemsize // item
    page = offset + s.nheads * s.headdim * s.dstate
    if padded:
        page = -(-page * item // PADDED_PAGE_BYTES) * PADDED_PAGE_BYTES // item
    shape = (slots, s.nheads, s.headdim, s.dstate)
    strides = (page, s.headdim * s.dstate, s.dstate, 1)
    pages = torch.empty(offset + slots * page, dtype=DTYPES[s.state_dtype], device=device)
    return pages.as_strided(shape, strides, offset)


def _meta(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _indices(count: int) -> Tensor:
    return _meta(count, dtype=torch.int32)


def _platform(target: Target) -> Any:
    """A platform of vLLM's own interface that answers for the target."""
    interface = importlib.import_module("vllm.platforms.interface")

    class StandIn(interface.Platform):  # type: ignore[misc,name-defined]
        _enum = interface.PlatformEnum.CUDA
        device_name = "cuda"
        device_type = "cuda"
        dispatch_key = "CUDA"

        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return interface.DeviceCapability(*target.capability)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return device_name(target)

    return StandIn()


ENGINE = Vllm()
