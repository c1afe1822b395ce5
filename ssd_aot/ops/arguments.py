"""The tensors of one scan call: checked, and taken apart into a layout and counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from ssd_aot.errors import UsageError
from ssd_aot.layouts import VECTORISED, WIDE_SUFFIXES, Blocking, Counts, ScanLayout

TYPE_NAMES: Mapping[torch.dtype, str] = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
}
HEADDIM_RANGE = (16, 128)
DSTATE_RANGE = (16, 256)
MAX_TOKEN_STRIDE = 2**24
"""Elements: the offsets inside a chunk's tile are 32-bit, and a tile has at most 128 rows."""


def check(condition: bool, where: str, what: str, found: object, wanted: object, mend: str) -> None:
    if not condition:
        raise UsageError(what, where=where, found=str(found), wanted=str(wanted), mend=mend)


def check_tensors(tensors: Mapping[str, Tensor], chunk_size: int) -> None:
    """Refuse what no kernel computes: shapes, dtypes, devices, sizes and gradients.

    `tensors` holds the present ones under the names of `operation.PARAMETERS`; x is (tokens,
    nheads, headdim), or (batch, tokens, nheads, headdim) in batch layout.
    """
    power_of_two = isinstance(chunk_size, int) and chunk_size > 0 and chunk_size.bit_count() == 1
    check(power_of_two, "chunk_size", "chunk size is not a power of two", chunk_size,
          "a power of two such as 64, 128 or 256", "pass the model's chunk_size")  # fmt: skip
    x, B = tensors["x"], tensors["B"]
    check(x.dim() in (3, 4), "x", "wrong number of dimensions", tuple(x.shape),
          "(tokens, nheads, headdim) or (batch, tokens, nheads, headdim)", "reshape x")  # fmt: skip
    lead, (nheads, headdim) = tuple(x.shape[:-2]), x.shape[-2:]
    ngroups, dstate = B.shape[-2:]
    spans = tensors["spans"].shape[0] - 1 if "spans" in tensors else lead[0]
    check(spans >= 0, "cu_seqlens", "no offsets at all", "0 elements", "one more than sequences",
          "pass the offset 0 and each sequence's end")  # fmt: skip
    sequences = tensors["last_chunks"].shape[0] if "last_chunks" in tensors else spans
    shapes: dict[str, tuple[int, ...]] = {
        "dt": (*lead, nheads),
        "A": (nheads,),
        "B": (*lead, ngroups, dstate),
        "C": (*lead, ngroups, dstate),
        "z": (*lead, nheads, headdim),
        "out": (*lead, nheads, headdim),
        "dt_bias": (nheads,),
        "seq_idx": lead,
        "initial_states": (sequences, nheads, headdim, dstate),
        "final_slots": (sequences,),
        "last_chunks": (sequences,),
        "chunk_states": (spans, nheads, headdim, dstate),
    }
    for name, shape in shapes.items():
        if name in tensors:
            found = tuple(tensors[name].shape)
            check(found == shape, name, "wrong shape", found, shape, f"pass {name} in that shape")
    if "D" in tensors:
        found = tuple(tensors["D"].shape)
        allowed = ((nheads,), (nheads, headdim))
        check(found in allowed, "D", "wrong shape", found, f"{allowed[0]} or {allowed[1]}",
              "pass D per head, or per head and dim")  # fmt: skip
    if "final_states" in tensors:
        found = tuple(tensors["final_states"].shape)
        check(found[1:] == (nheads, headdim, dstate), "final_states_out", "wrong shape", found,
              f"(slots, {nheads}, {headdim}, {dstate})",
              "pass this layer's state cache")  # fmt: skip
        slots = sequences if "final_slots" not in tensors else 0
        check(found[0] >= slots, "final_states_out", "fewer slots than sequences", found[0],
              f"{slots} or more", "pass a slot for each, or final_state_indices")  # fmt: skip
    check(ngroups > 0 and nheads % ngroups == 0, "B", "groups do not divide heads",
          f"{ngroups} groups, {nheads} heads", "nheads % ngroups == 0",
          "check the rank's split")  # fmt: skip
    for where, size, (low, high) in (
        ("headdim", headdim, HEADDIM_RANGE),
        ("dstate", dstate, DSTATE_RANGE),
    ):
        check(low <= size <= high, where, "outside the range the kernels cover", size,
              f"{low} to {high}", "use the engine's own kernels for this model")  # fmt: skip
    _check_dtypes(tensors)


def _check_dtypes(tensors: Mapping[str, Tensor]) -> None:
    x = tensors["x"]
    for name, tensor in tensors.items():
        check(tensor.device == x.device, name, "on another device than x", tensor.device, x.device,
              "move it there")  # fmt: skip
        check(not (tensor.requires_grad and torch.is_grad_enabled()), name,
              "requires a gradient, and these operations are forward only", "requires_grad=True",
              "no gradient", "call under torch.no_grad() or torch.inference_mode()")  # fmt: skip
    for name in ("B", "C", "z", "out"):
        if name in tensors:
            check(tensors[name].dtype == x.dtype, name, "dtype differs from that of x",
                  tensors[name].dtype, x.dtype, f"convert {name}")  # fmt: skip
    for name in ("x", "dt", "D", "dt_bias", "initial_states", "final_states", "chunk_states"):
        if name in tensors:
            check(tensors[name].dtype in TYPE_NAMES, name, "dtype is not supported",
                  tensors[name].dtype, "bfloat16, float16 or float32",
                  f"convert {name}")  # fmt: skip
    check(tensors["A"].dtype == torch.float32, "A", "dtype is not float32", tensors["A"].dtype,
          "torch.float32", "pass A as -exp(A_log.float()), as the engines keep it")  # fmt: skip
    for name in ("initial_states", "final_states", "chunk_states"):
        states = tensors.get("final_states", tensors.get("chunk_states"))
        if name in tensors and states is not None:
            check(tensors[name].dtype == states.dtype, name, "state dtypes differ",
                  tensors[name].dtype, states.dtype, "use one dtype for all states")  # fmt: skip


def unit_inner_stride(tensor: Tensor) -> Tensor:
    """The tensor itself, or a copy where its last dimension is strided."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


def as_int32(indices: Tensor) -> Tensor:
    """Indices as int32; int64 ones are seen through their low words, without a copy."""
    if indices.dtype == torch.int32:
        return indices
    if indices.dtype == torch.int64 and indices.stride(-1) == 1:
        return indices.view(torch.int32)[..., ::2]
    return indices.to(torch.int32)


def layout_of(
    tensors: Mapping[str, Tensor],
    dt_softplus: bool,
    dt_limit: tuple[float, float],
    blocking: Blocking,
) -> ScanLayout:
    """The layout of checked tensors (see `check_tensors`)."""
    low, high = (float(limit) for limit in dt_limit)
    check(0.0 <= low <= high, "dt_limit", "not an interval of non-negative steps", dt_limit,
          "0 <= dt_limit[0] <= dt_limit[1]", "pass the model's time_step_limit")  # fmt: skip
    x, B = tensors["x"], tensors["B"]
    d_form: Literal[0, 1, 2] = 0
    if "D" in tensors:
        d_form = 1 if tensors["D"].dim() == 1 else 2
    strides = _strides(tensors)
    for name, stride in strides.items():
        if not name.endswith(WIDE_SUFFIXES):
            limit = MAX_TOKEN_STRIDE if name.endswith("_token") else 2**31 - 1
            check(abs(stride) <= limit, name, "stride is too large", stride,
                  f"at most {limit} elements", "make the tensor contiguous")  # fmt: skip
    return ScanLayout(
        nheads=x.shape[-2],
        headdim=x.shape[-1],
        dstate=B.shape[-1],
        ngroups=B.shape[-2],
        types=tuple((name, TYPE_NAMES.get(t.dtype, "i32")) for name, t in tensors.items()),
        strides=tuple(strides.items()),
        aligned=_aligned(tensors),
        packed=x.dim() == 3,
        d_form=d_form,
        dt_softplus=dt_softplus,
        dt_limit=(low, high),
        blocking=blocking,
    )


def _strides(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Every stride argument of the kernels, in elements; 0 for tensors that are absent."""
    strides: dict[str, int] = {}

    def put(prefix: str, tensor: str, axes: Mapping[str, int]) -> None:
        for axis, dim in axes.items():
            present = tensor in tensors and tensors[tensor].dim() >= -dim
            strides[f"{prefix}_{axis}"] = tensors[tensor].stride(dim) if present else 0

    for name in ("x", "z", "out"):
        put(name, name, {"batch": -4, "token": -3, "head": -2})
    for name in ("B", "C"):
        put(name, name, {"batch": -4, "token": -3, "group": -2})
    put("dt", "dt", {"batch": -3, "token": -2, "head": -1})
    put("seq_idx", "seq_idx", {"batch": -2, "token": -1})
    for prefix, name in (("initial", "initial_states"), ("final", "final_states")):
        put(prefix, name, {"slot": -4, "head": -3, "row": -2})
    for name in ("spans", "last_chunks", "final_slots"):
        strides[f"{name}_stride"] = tensors[name].stride(0) if name in tensors else 0
    strides["D_head_stride"] = tensors["D"].stride(0) if "D" in tensors else 0
    return strides


def _aligned(tensors: Mapping[str, Tensor]) -> bool:
    return all(
        tensors[name].data_ptr() % 16 == 0
        and all(stride % 16 == 0 for stride in tensors[name].stride()[:-1])
        for name in VECTORISED
        if name in tensors
    )


def counts_of(tensors: Mapping[str, Tensor]) -> Counts:
    """The counts of checked tensors, from shapes alone."""
    shape = tensors["x"].shape
    if len(shape) == 4:
        return Counts(shape[0] * shape[1], shape[0], shape[0], shape[1])
    spans = tensors["spans"].shape[0] - 1
    sequences = tensors["last_chunks"].shape[0] if "last_chunks" in tensors else spans
    return Counts(shape[0], spans, sequences)
