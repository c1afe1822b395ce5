"""The builtin operations called as an engine's mixer calls them, on meta tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from ssd_aot import ops
from ssd_aot.signatures import Signature
from ssd_aot.sources.batches import Batch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def call_operations(signature: Signature, batch: Batch) -> None:
    """Call the operation that the signature selects, with every output it can be asked for."""
    if signature.is_cont_batched:
        _call_packed(signature, batch)
    else:
        _call_batch(signature, batch, return_final_states=True)
        _call_batch(signature, batch, return_final_states=False)


def _views(signature: Signature, batch: Batch) -> dict[str, Tensor]:
    """x, B, C as slices of the convolution's output and dt of the input projection, as engines
    pass them; for the `unaligned` layout every row is one element longer than its content."""
    s, tokens = signature, batch.tokens
    dtype = DTYPES[s.dtype]
    inner, state = s.nheads * s.headdim, s.ngroups * s.dstate
    odd = 1 if s.layout == "unaligned" else 0
    rows = batch.decode_tokens + tokens
    conv = torch.empty(rows, inner + 2 * state + odd, dtype=dtype, device="meta")
    conv = conv[batch.decode_tokens :, odd:]
    projection_row = 2 * inner + 2 * state + s.nheads
    projection = torch.empty(rows, projection_row, dtype=dtype, device="meta")
    projection = projection[batch.decode_tokens :]
    x, B, C = torch.split(conv, [inner, state, state], dim=-1)
    dt = projection[:, -s.nheads :]
    if s.dt_dtype != s.dtype:
        dt = dt.to(DTYPES[s.dt_dtype])
    views = {
        "x": x.unflatten(-1, (s.nheads, s.headdim)),
        "dt": dt,
        "A": torch.empty(s.nheads, dtype=torch.float32, device="meta"),
        "B": B.unflatten(-1, (s.ngroups, s.dstate)),
        "C": C.unflatten(-1, (s.ngroups, s.dstate)),
    }
    if s.z:
        views["z"] = projection[:, :inner].unflatten(-1, (s.nheads, s.headdim))
    return views


def _parameters(signature: Signature) -> dict[str, Tensor | None]:
    s = signature
    dtype = DTYPES[s.param_dtype]
    shapes = {"head": (s.nheads,), "headdim": (s.nheads, s.headdim)}
    D = None if s.D == "none" else torch.empty(shapes[s.D], dtype=dtype, device="meta")
    bias = torch.empty(s.nheads, dtype=dtype, device="meta") if s.dt_bias else None
    return {"D": D, "dt_bias": bias}


def _states(signature: Signature, count: int) -> Tensor:
    s = signature
    odd = 1 if s.layout == "unaligned" else 0
    shape = (count, s.nheads, s.headdim, s.dstate + odd)
    return torch.empty(shape, dtype=DTYPES[s.state_dtype], device="meta")[..., odd:]


def _indices(count: int) -> Tensor:
    return torch.empty(count, dtype=torch.int32, device="meta")


def _call_packed(signature: Signature, batch: Batch) -> None:
    s = signature
    views = _views(s, batch)
    out = torch.empty(views["x"].shape, dtype=views["x"].dtype, device="meta")
    chunks = batch.tokens // s.chunk_size + batch.num_seqs
    final: dict[str, Tensor] = {}
    if not s.intermediate_states:
        final["final_states_out"] = _states(s, batch.num_seqs + 1)
        final["final_state_indices"] = _indices(batch.num_seqs)
    ops.mamba_chunk_scan_combined_varlen(
        views["x"],
        views["dt"],
        views["A"],
        views["B"],
        views["C"],
        s.chunk_size,
        cu_seqlens=_indices(batch.num_seqs + 1),
        cu_chunk_seqlens=_indices(chunks + 1),
        last_chunk_indices=_indices(batch.num_seqs),
        seq_idx=_indices(chunks),
        out=out,
        z=views.get("z"),
        initial_states=_states(s, batch.num_seqs) if s.has_initstates else None,
        dt_softplus=s.dt_softplus,
        return_intermediate_states=s.intermediate_states,
        state_dtype=DTYPES[s.state_dtype],
        **_parameters(s),
        **final,
    )


def _call_batch(signature: Signature, batch: Batch, return_final_states: bool) -> None:
    s = signature
    length = max(1, batch.tokens // batch.num_seqs)
    views = {
        name: tensor if name == "A" else _rows(tensor, batch.num_seqs, length)
        for name, tensor in _views(s, Batch(batch.num_seqs, batch.num_seqs * length)).items()
    }
    seq_idx = _indices(batch.num_seqs * length).view(batch.num_seqs, length) if s.seq_idx else None
    ops.mamba_ssm.mamba_chunk_scan_combined(
        views["x"],
        views["dt"],
        views["A"],
        views["B"],
        views["C"],
        s.chunk_size,
        z=views.get("z"),
        initial_states=_states(s, batch.num_seqs) if s.has_initstates else None,
        seq_idx=seq_idx,
        dt_softplus=s.dt_softplus,
        return_final_states=return_final_states,
        state_dtype=DTYPES[s.state_dtype],
        **_parameters(s),
    )


def _rows(tensor: Tensor, batch: int, length: int) -> Tensor:
    return tensor.unflatten(0, (batch, length))
