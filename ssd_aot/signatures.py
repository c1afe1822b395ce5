"""Signatures: the points of the expanded matrix, one per model, tensor-parallel size and axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Dtype = Literal["bf16", "fp16", "fp32"]


@dataclass(frozen=True)
class Signature:
    """One point of the expanded matrix; counts are per rank, after tensor parallelism.

    `dtype` is that of x, B, C, z and the output; `dt_dtype` that of dt; `param_dtype` that of D
    and dt_bias; `state_dtype` that of initial and final states. `num_seqs` is an inclusive range.
    `is_cont_batched` selects the packed call (`cu_seqlens`) against the batch call. `D` is `none`,
    `head` for (nheads,), or `headdim` for (nheads, headdim). `layout` is `engine` (views as an
    engine's mixer slices them) or `unaligned` (views with no alignment to rely on). `lengths` is
    `any` or `chunk_aligned` (every sequence a multiple of the chunk size).
    """

    model: str
    tp: int
    nheads: int
    headdim: int
    dstate: int
    ngroups: int
    conv_kernel: int
    dtype: Dtype
    dt_dtype: Dtype
    param_dtype: Dtype
    state_dtype: Dtype
    chunk_size: int
    has_initstates: bool
    is_cont_batched: bool
    num_seqs: tuple[int, int]
    max_num_batched_tokens: int
    D: Literal["none", "head", "headdim"]
    z: bool
    dt_bias: bool
    dt_softplus: bool
    seq_idx: bool
    intermediate_states: bool
    layout: Literal["engine", "unaligned"]
    lengths: Literal["any", "chunk_aligned"]

    @property
    def id(self) -> str:
        """A readable name, unique within a spec; defaults of rare axes are left out of it."""
        low, high = self.num_seqs
        parts = [
            self.model,
            f"tp{self.tp}",
            "-".join((self.dtype, self.dt_dtype, self.param_dtype, self.state_dtype)),
            f"c{self.chunk_size}",
            "init" if self.has_initstates else "noinit",
            "packed" if self.is_cont_batched else "batch",
            f"seqs{low}" if low == high else f"seqs{low}..{high}",
        ]
        rare = (
            (self.D != "head", f"D-{self.D}"),
            (self.z, "z"),
            (not self.dt_bias, "nobias"),
            (not self.dt_softplus, "nosoftplus"),
            (self.seq_idx, "seqidx"),
            (self.intermediate_states, "intermediate"),
            (self.layout != "engine", self.layout),
            (self.lengths != "any", self.lengths),
        )
        return "/".join(parts + [text for present, text in rare if present])

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self), num_seqs=list(self.num_seqs))

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Signature:
        return cls(**{**data, "num_seqs": tuple(data["num_seqs"])})
