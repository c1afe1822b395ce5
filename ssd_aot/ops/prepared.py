"""The packed operation bound once per layer: what engines call when every microsecond counts."""

from __future__ import annotations

import weakref

from torch import Tensor

from ssd_aot.errors import UsageError
from ssd_aot.ops import recall
from ssd_aot.ops.scanning import scan


class PreparedLayer:
    """One layer's packed scan. Made by `ops.prepare`; safe to call from several threads.

    Holds no reference that keeps a tensor alive: the layer's parameters are watched, and their
    addresses read anew at every call, so that replaced weights are seen.
    """

    def __init__(
        self,
        A: Tensor,
        D: Tensor | None,
        dt_bias: Tensor | None,
        chunk_size: int,
        dt_softplus: bool,
        dt_limit: tuple[float, float],
    ) -> None:
        self._A = weakref.ref(A)
        self._D = weakref.ref(D) if D is not None else _absent
        self._dt_bias = weakref.ref(dt_bias) if dt_bias is not None else _absent
        self._has_D = D is not None
        self._has_dt_bias = dt_bias is not None
        self._chunk_size = chunk_size
        self._dt_softplus = dt_softplus
        self._dt_limit = dt_limit
        self._calls: dict[tuple[bool, bool, bool], recall.RememberedCall] = {}
        self._generation = recall.generation()

    def __call__(
        self,
        x: Tensor,
        dt: Tensor,
        B: Tensor,
        C: Tensor,
        out: Tensor,
        cu_seqlens: Tensor,
        initial_states: Tensor | None = None,
        final_states_out: Tensor | None = None,
        final_state_indices: Tensor | None = None,
        z: Tensor | None = None,
    ) -> None:
        """Scan packed sequences; arguments as `ops.mamba_chunk_scan_combined_varlen` takes them.

        Writes `out`, and the final states into the slots of `final_states_out`. Raises as that
        operation does, and `UsageError` without `final_states_out`, whose kernels are in no plan,
        or when a bound parameter no longer exists.
        """
        A, D, dt_bias = self._A(), self._D(), self._dt_bias()
        given = (
            x, dt, A, B, C, D, z, dt_bias, None, cu_seqlens, None, out, initial_states,
            final_states_out, final_state_indices, None,
        )  # fmt: skip
        present = (z is None, initial_states is None, final_states_out is None)
        if self._generation == recall.generation():
            call = self._calls.get(present)
            if call is not None and A is not None and call.launch(given):
                return
        self._call_anew(given, present)

    def _call_anew(self, given: recall.Given, present: tuple[bool, bool, bool]) -> None:
        x, dt, A, B, C, D, z, dt_bias, _, spans, _, out, initial, final, slots, _ = given
        lost = A is None or (self._has_D and D is None) or (self._has_dt_bias and dt_bias is None)
        if lost:
            raise UsageError(
                "a parameter that this layer was prepared with no longer exists",
                where="ops.prepare",
                found="a freed tensor",
                wanted="A, D and dt_bias alive as long as the layer is called",
                mend="keep the layer's parameters, or prepare it again",
            )
        if final is None:
            raise UsageError(
                "a prepared layer writes final states",
                where="final_states_out",
                found="None",
                wanted="the state cache, (slots, nheads, headdim, dstate)",
                mend="pass the cache, or a tensor of one slot a sequence",
            )
        assert x is not None and dt is not None and A is not None
        assert B is not None and C is not None and out is not None
        scan(
            x, dt, A, B, C, D, z, dt_bias, None, spans, None, out, initial, final, slots, None,
            self._chunk_size, self._dt_softplus, self._dt_limit,
        )  # fmt: skip
        if self._generation != recall.generation():
            self._calls.clear()
            self._generation = recall.generation()
        call = recall.latest(given, self._chunk_size, self._dt_softplus, self._dt_limit)
        if call is not None:
            self._calls[present] = call


def _absent() -> None:
    return None


def prepare(
    A: Tensor,
    *,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    chunk_size: int = 128,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
) -> PreparedLayer:
    """Bind a layer's parameters: A (nheads,) float32, D (nheads,) or (nheads, headdim), dt_bias
    (nheads,). The result is called with what changes from step to step."""
    return PreparedLayer(A, D, dt_bias, chunk_size, dt_softplus, dt_limit)
