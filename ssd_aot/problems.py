"""Scan problems shaped as serving shapes them: traced on meta tensors, run and judged on real ones.

x, B and C are slices of one convolution output and dt (and z) of one input projection, behind the
rows of the decode tokens that share the step, so strides and alignments are those an engine's
mixer passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from ssd_aot import ops
from ssd_aot.measurement.reference import ReferenceResult, ssd_reference
from ssd_aot.serving_tensors import DTYPES, Chunks, indices, paged_state_cache, state_cache
from ssd_aot.signatures import Signature

NO_LIMIT = (0.0, float("inf"))


@dataclass(frozen=True)
class Results:
    """`out` as the operation wrote it, packed to (tokens, nheads, headdim), and `states`: final
    ones (sequences, …), or those after each chunk, or None when none were asked for."""

    out: Tensor
    states: Tensor | None


@dataclass(frozen=True)
class Problem:
    """The arguments of one call under a signature; shapes as `ops` documents them."""

    signature: Signature
    lengths: tuple[int, ...]
    x: Tensor
    dt: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None
    z: Tensor | None
    dt_bias: Tensor | None
    initial_states: Tensor | None
    seq_idx: Tensor | None
    cu_seqlens: Tensor
    chunks: Chunks
    dt_limit: tuple[float, float] = NO_LIMIT

    @property
    def state_dtype(self) -> torch.dtype:
        return DTYPES[self.signature.state_dtype]

    def run(self, *, final_states: bool = True, paged: bool = False) -> Results:
        """Call the operation that the signature selects, into outputs filled with NaN.

        Packed calls write final states into shuffled slots of a cache, which with `paged` are
        pages that begin with a column of the convolution's state. `final_states` matters for batch
        calls, which can do without.
        """
        if self.signature.is_cont_batched:
            return self._run_packed(paged)
        return self._run_batch(final_states)

    def call(self) -> Callable[[], object]:
        """The bare call that `run` makes, with outputs of its own, to be made again and again."""
        if self.signature.is_cont_batched:
            return self._packed_call(_Outputs.of(self, paged=False))
        return self._batch_call(final_states=True)

    def _run_packed(self, paged: bool) -> Results:
        outputs = _Outputs.of(self, paged)
        _poison(outputs.out)
        if outputs.cache is not None:
            _poison(outputs.cache)
        states: Tensor | None = self._packed_call(outputs)()
        cache, slots = outputs.cache, outputs.slots
        if cache is not None and slots is not None:
            states = cache[slots.long()] if cache.device.type != "meta" else cache
        return Results(outputs.out, states)

    def _packed_call(self, outputs: _Outputs) -> Callable[[], Tensor | None]:
        s = self.signature
        return partial(
            ops.mamba_chunk_scan_combined_varlen,
            self.x, self.dt, self.A, self.B, self.C, s.chunk_size, self.cu_seqlens,
            self.chunks.ends, self.chunks.last, self.chunks.owner, outputs.out, D=self.D, z=self.z,
            dt_bias=self.dt_bias, initial_states=self.initial_states, dt_softplus=s.dt_softplus,
            dt_limit=self.dt_limit, return_intermediate_states=s.intermediate_states,
            state_dtype=self.state_dtype, final_states_out=outputs.cache,
            final_state_indices=outputs.slots,
        )  # fmt: skip

    def _run_batch(self, final_states: bool) -> Results:
        returned = self._batch_call(final_states)()
        if isinstance(returned, Tensor):
            return Results(returned.flatten(0, 1), None)
        out, states = returned
        return Results(out.flatten(0, 1), states)

    def _batch_call(self, final_states: bool) -> Callable[[], Tensor | tuple[Tensor, ...]]:
        s = self.signature
        return partial(
            ops.mamba_ssm.mamba_chunk_scan_combined,
            self.x, self.dt, self.A, self.B, self.C, s.chunk_size, D=self.D, z=self.z,
            dt_bias=self.dt_bias, initial_states=self.initial_states, seq_idx=self.seq_idx,
            dt_softplus=s.dt_softplus, dt_limit=self.dt_limit, return_final_states=final_states,
            state_dtype=self.state_dtype,
        )  # fmt: skip

    def reference(self) -> Results:
        """The float64 recurrence's answer, in the form `run` gives."""
        keep = self.signature.intermediate_states
        result = self._recurrence(keep)
        if keep:
            assert result.states is not None
            return Results(result.out, result.states[self.chunks.ends[1:].long() - 1])
        return Results(result.out, result.final_states)

    def _recurrence(self, keep_states: bool) -> ReferenceResult:
        packed = [
            tensor.flatten(0, 1) if tensor is not None and not self.signature.is_cont_batched
            else tensor
            for tensor in (self.x, self.dt, self.B, self.C, self.z)
        ]  # fmt: skip
        x, dt, B, C, z = packed
        assert x is not None and dt is not None and B is not None and C is not None
        return ssd_reference(
            x, dt, self.A, B, C, list(self.lengths), D=self.D, z=z, dt_bias=self.dt_bias,
            initial_states=self.initial_states, dt_softplus=self.signature.dt_softplus,
            dt_limit=self.dt_limit, keep_states=keep_states,
        )  # fmt: skip


@dataclass(frozen=True)
class _Outputs:
    """Uninitialised outputs of a packed call: `cache` holds one slot more than sequences, and
    `slots` are the sequences', shuffled; both None where intermediate states are returned."""

    out: Tensor
    cache: Tensor | None
    slots: Tensor | None

    @classmethod
    def of(cls, problem: Problem, paged: bool) -> _Outputs:
        s, x, count = problem.signature, problem.x, len(problem.lengths)
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        if s.intermediate_states:
            return cls(out, None, None)
        cache = (paged_state_cache if paged else state_cache)(s, count + 1, x.device)
        return cls(out, cache, torch.arange(count, 0, -1, dtype=torch.int32, device=x.device))


def make_problem(
    signature: Signature,
    lengths: Sequence[int],
    *,
    device: str | torch.device,
    decode_tokens: int = 0,
    seed: int = 0,
    rate: float = 1.0,
    dt_limit: tuple[float, float] = NO_LIMIT,
    fill: bool = True,
) -> Problem:
    """A random problem; on the meta device, or without `fill`, shapes alone.

    Batch signatures want equal lengths. With `seq_idx` a row's tokens all carry index 0, which
    leaves the answer that of the plain batch. A is drawn from (-1.5, -0.5) times `rate`.
    """
    s, count, tokens = signature, len(lengths), sum(lengths)
    place = torch.device(device)
    draw = None if place.type == "meta" or not fill else torch.Generator(place).manual_seed(seed)

    def random(*shape: int, dtype: torch.dtype) -> Tensor:
        if draw is None:
            return torch.empty(shape, dtype=dtype, device=place)
        return torch.randn(shape, generator=draw, device=place).to(dtype)

    dtype, parameters = DTYPES[s.dtype], DTYPES[s.param_dtype]
    inner, state = s.nheads * s.headdim, s.ngroups * s.dstate
    odd = 1 if s.layout == "unaligned" else 0
    rows = decode_tokens + tokens
    convolved = random(rows, inner + 2 * state + odd, dtype=dtype)[decode_tokens:, odd:]
    projected = random(rows, 2 * inner + 2 * state + s.nheads, dtype=dtype)[decode_tokens:]
    x, B, C = torch.split(convolved, [inner, state, state], dim=-1)
    dt = projected[:, -s.nheads :]
    z = torch.unflatten(projected[:, :inner], -1, (s.nheads, s.headdim)) if s.z else None
    rates = torch.empty(s.nheads, device=place)
    if draw is not None:
        rates.uniform_(-1.5 * rate, -0.5 * rate, generator=draw)
    skip = {"none": None, "head": (s.nheads,), "headdim": (s.nheads, s.headdim)}[s.D]
    initial = None
    if s.has_initstates:
        initial = state_cache(s, count, place)
        if draw is not None:
            initial.copy_(random(*initial.shape, dtype=torch.float32))
    shaped = {
        "x": torch.unflatten(x, -1, (s.nheads, s.headdim)),
        "dt": dt if s.dt_dtype == s.dtype else dt.to(DTYPES[s.dt_dtype]),
        "B": torch.unflatten(B, -1, (s.ngroups, s.dstate)),
        "C": torch.unflatten(C, -1, (s.ngroups, s.dstate)),
        "z": z,
    }
    if not s.is_cont_batched:
        shaped = {
            name: None if tensor is None else torch.unflatten(tensor, 0, (count, -1))
            for name, tensor in shaped.items()
        }
    return Problem(
        signature=s,
        lengths=tuple(lengths),
        A=rates,
        D=None if skip is None else random(*skip, dtype=parameters),
        dt_bias=random(s.nheads, dtype=parameters) if s.dt_bias else None,
        initial_states=initial,
        seq_idx=torch.zeros(count, tokens // count, dtype=torch.int32, device=place)
        if s.seq_idx
        else None,
        cu_seqlens=indices([0, *accumulate(lengths)], place),
        chunks=Chunks.of(lengths, s.chunk_size, place),
        dt_limit=dt_limit,
        **shaped,  # type: ignore[arg-type]
    )


def _poison(tensor: Tensor) -> None:
    if tensor.device.type != "meta":
        tensor.fill_(float("nan"))
