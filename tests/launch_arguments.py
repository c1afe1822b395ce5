"""The packed operation's arguments on a GPU, for tests that call it themselves."""

from __future__ import annotations

from typing import Any

import torch

from ssd_aot import ops
from ssd_aot.problems import Problem


def arguments(p: Problem) -> dict[str, Any]:
    """Keyword arguments of the drop-in operation with outputs of their own."""
    s, count = p.signature, len(p.lengths)
    states = torch.full((count + 1, s.nheads, s.headdim, s.dstate), float("nan"), device=p.x.device)
    return {
        "x": p.x, "dt": p.dt, "A": p.A, "B": p.B, "C": p.C, "chunk_size": 128,
        "cu_seqlens": p.cu_seqlens, "cu_chunk_seqlens": p.chunks.ends,
        "last_chunk_indices": p.chunks.last, "seq_idx": p.chunks.owner,
        "out": torch.full_like(p.x, float("nan")), "D": p.D, "dt_bias": p.dt_bias,
        "initial_states": p.initial_states, "dt_softplus": True, "state_dtype": torch.float32,
        "final_states_out": states,
        "final_state_indices": torch.arange(count, dtype=torch.int32, device=p.x.device),
    }  # fmt: skip


def call(a: dict[str, Any]) -> None:
    ops.mamba_chunk_scan_combined_varlen(**a)
