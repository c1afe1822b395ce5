"""Signatures: the points of the expanded matrix, one per model, tensor-parallel size and axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from ssd_aot.errors import SpecError

if TYPE_CHECKING:
    from ssd_aot.matrix import Point, Section

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


class Sectioned(Protocol):
    """What is expanded: a spec, of which only its sections count here."""

    @property
    def sections(self) -> tuple[Section, ...]: ...


def expand(spec: Sectioned) -> tuple[Signature, ...]:
    """Every signature of a spec, each once, in the order of their ids.

    Nothing here depends on a token count: `max_num_batched_tokens` only bounds what tracing
    calls. Raises SpecError for a point that cannot be, and where one id would name two signatures.
    """
    found: dict[str, Signature] = {}
    for section in spec.sections:
        for point in section.points():
            signature = _signature(point, section.max_num_batched_tokens)
            known = found.setdefault(signature.id, signature)
            if known != signature:
                raise _clash(known, signature, section.place(f"models.{signature.model}"))
    return tuple(found[key] for key in sorted(found))


def notices(spec: Sectioned) -> tuple[str, ...]:
    """What expansion changed of what was asked, one sentence each: ranges that were clipped."""
    points = (point for section in spec.sections for point in section.points())
    return tuple(dict.fromkeys(point.notice for point in points if point.notice))


def _signature(point: Point, max_num_batched_tokens: int) -> Signature:
    nheads, ngroups = point.model.per_rank(point.tp)
    values: dict[str, Any] = dict(point.values)
    for axis in ("dt_dtype", "param_dtype"):
        if values[axis] == "same":
            values[axis] = values["dtype"]
    values["has_initstates"] = values.pop("HAS_INITSTATES")
    values["is_cont_batched"] = values.pop("IS_CONT_BATCHED")
    values["num_seqs"] = point.num_seqs
    return Signature(
        model=point.model.name,
        tp=point.tp,
        nheads=nheads,
        headdim=point.model.headdim,
        dstate=point.model.dstate,
        ngroups=ngroups,
        conv_kernel=point.model.conv_kernel,
        max_num_batched_tokens=max_num_batched_tokens,
        **values,
    )


def _clash(known: Signature, other: Signature, where: str) -> SpecError:
    old, new = known.to_json(), other.to_json()
    differ = [name for name in old if old[name] != new[name]]
    return SpecError(
        f"two signatures would be {known.id}",
        where=where,
        found=", ".join(f"{name} {old[name]} and {new[name]}" for name in differ),
        wanted="one signature an id",
        mend="give the specs that share a model the same limits, or build them apart",
    )
