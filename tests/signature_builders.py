"""Signatures for tests: one serving point, and what a test changes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ssd_aot.signatures import Signature

ONE = Signature(
    model="model",
    tp=1,
    nheads=128,
    headdim=64,
    dstate=128,
    ngroups=8,
    conv_kernel=4,
    dtype="bf16",
    dt_dtype="bf16",
    param_dtype="bf16",
    state_dtype="fp32",
    chunk_size=128,
    has_initstates=True,
    is_cont_batched=True,
    num_seqs=(1, 1),
    max_num_batched_tokens=8192,
    D="head",
    z=False,
    dt_bias=True,
    dt_softplus=True,
    seq_idx=False,
    intermediate_states=False,
    layout="engine",
    lengths="any",
)


def signature(**fields: Any) -> Signature:
    """A Nemotron-3-Super layer's packed prefill of one sequence with initial states, changed."""
    return replace(ONE, **fields)
