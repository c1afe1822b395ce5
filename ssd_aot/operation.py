"""The SSD scan as data: which kernels run, with which keys, arguments, grids and workspace.

Free of Triton and of tensors, so that the build enumerates what the launcher launches and the
launcher needs nothing else at serve time. `layouts` holds the facts of a call that this reads.

Several forms compute the same result. `walk` (decay, scan) keeps a sequence's state in registers
from its first chunk to its last. `segments` (segment_states, state_passing, scan) cuts sequences
into segments that run side by side, for batches with too few sequences times heads to fill the GPU
and for batches that want the states after the caller's chunks; `short_segments` is the same with
shorter ones, for little work.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Literal

from ssd_aot.launches import Argument, Configuration, Constant, Launch, canonical_json
from ssd_aot.layouts import VECTORISED, WIDE_SUFFIXES, Counts, Form, ScanLayout, segments

PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "decay": (
        "dt", "A", "dt_bias", "seq_idx", "spans", "decay_terms", "num_spans", "span_tokens",
        "rows", "nheads", "dt_min", "dt_max", "spans_stride", "dt_batch", "dt_token", "dt_head",
        "seq_idx_batch", "seq_idx_token",
    ),
    "segment_states": (
        "x", "dt", "A", "B", "dt_bias", "seq_idx", "spans", "decay_terms", "states",
        "segment_decay", "num_spans", "span_tokens", "rows", "nheads", "heads_per_group",
        "dt_min", "dt_max", "spans_stride", "x_batch", "x_token", "x_head", "dt_batch",
        "dt_token", "dt_head", "B_batch", "B_token", "B_group", "seq_idx_batch", "seq_idx_token",
    ),
    "state_passing": (
        "states", "segment_decay", "initial_states", "final_states", "final_slots",
        "chunk_states", "sequences", "last_chunks", "sequence_tokens", "nheads",
        "sequences_stride", "last_chunks_stride", "has_final_slots", "final_slots_stride",
        "initial_slot", "initial_head", "initial_row", "final_slot", "final_head", "final_row",
    ),
    "scan": (
        "x", "B", "C", "D", "z", "out", "decay_terms", "initial_states", "final_states",
        "final_slots", "spans", "num_spans", "span_tokens", "rows", "nheads", "heads_per_group",
        "spans_stride", "has_final_slots", "final_slots_stride", "x_batch", "x_token", "x_head",
        "B_batch", "B_token", "B_group", "C_batch", "C_token", "C_group", "z_batch", "z_token",
        "z_head", "out_batch", "out_token", "out_head", "D_head_stride", "initial_slot",
        "initial_head", "initial_row", "final_slot", "final_head", "final_row",
    ),
}  # fmt: skip
"""Runtime parameters of each kernel in order; a test holds them equal to the Triton functions'."""

KERNELS_OF: Mapping[Form, tuple[str, ...]] = {
    "walk": ("decay", "scan"),
    "segments": ("segment_states", "state_passing", "scan"),
    "short_segments": ("segment_states", "state_passing", "scan"),
}

# In the segmented form the scan starts from the states that state_passing left in the workspace,
# which lie densely and in float32.
SEGMENT_BINDING: Mapping[str, str] = {
    "initial_states": "states",
    "initial_slot": "states_slot",
    "initial_head": "states_head",
    "initial_row": "states_row",
}

# Spans are sequences, but where they are the caller's chunks; there state_passing counts chunks by
# their last ones and reads no offsets.
SEQUENCE_BINDING: Mapping[str, str] = {
    "sequences": "spans",
    "sequences_stride": "spans_stride",
    "sequence_tokens": "span_tokens",
}

WORKSPACES = ("decay_terms", "states", "segment_decay")

COUNT_NAMES = ("num_spans", "span_tokens", "rows")
"""Scalar arguments that change with the counts."""

INDEX_POINTERS = ("seq_idx", "spans", "last_chunks", "final_slots")


def launches(layout: ScanLayout, form: Form) -> tuple[Launch, ...]:
    """The launches of a form in order, without configurations."""
    return tuple(_launch(layout, form, kernel) for kernel in KERNELS_OF[form])


def _launch(layout: ScanLayout, form: Form, kernel: str) -> Launch:
    cut = form != "walk" and not layout.chunk_states
    segment = layout.blocking.segment_of(form) if cut else 0
    # Every flag a kernel can have; each kernel takes its own below.
    flags: dict[str, Constant] = {
        "HEADDIM": layout.headdim,
        "DSTATE": layout.dstate,
        "PACKED": layout.packed,
        "HAS_INITSTATES": layout.has("initial_states"),
        "HAS_FINAL_STATES": layout.has("final_states"),
        "HAS_CHUNK_STATES": layout.chunk_states,
        "HAS_DT_BIAS": layout.has("dt_bias"),
        "DT_SOFTPLUS": layout.dt_softplus,
        "HAS_SEQ_IDX": layout.has("seq_idx"),
        "D_FORM": layout.d_form,
        "HAS_Z": layout.has("z"),
        "CHUNK": layout.blocking.chunk,
        "SEGMENT": segment,
        "PRECISION": "tf32x3" if layout.dtype == "fp32" else "tf32",
    }
    absent: set[str] = set()
    if kernel == "scan" and form != "walk":
        flags.update(HAS_INITSTATES=True, HAS_FINAL_STATES=False)
        absent = {"final_states", "final_slots"}
    names = CONSTEXPRS[kernel]
    binding = bindings(kernel, form)
    return Launch(
        kernel=kernel,
        constexprs=tuple((name, flags[name]) for name in names),
        arguments=tuple(
            Argument(name, "none") if name in absent else _argument(layout, name, binding[name])
            for name in PARAMETERS[kernel]
        ),
    )


CONSTEXPRS: Mapping[str, tuple[str, ...]] = {
    "decay": ("PACKED", "HAS_DT_BIAS", "DT_SOFTPLUS", "HAS_SEQ_IDX", "CHUNK"),
    "segment_states": (
        "HEADDIM", "DSTATE", "PACKED", "HAS_DT_BIAS", "DT_SOFTPLUS", "HAS_SEQ_IDX", "CHUNK",
        "SEGMENT", "PRECISION",
    ),
    "state_passing": (
        "HEADDIM", "DSTATE", "PACKED", "HAS_INITSTATES", "HAS_FINAL_STATES", "HAS_CHUNK_STATES",
        "SEGMENT",
    ),
    "scan": (
        "HEADDIM", "DSTATE", "PACKED", "HAS_INITSTATES", "HAS_FINAL_STATES",
        "D_FORM", "HAS_Z", "CHUNK", "SEGMENT", "PRECISION",
    ),
}  # fmt: skip
"""Constexprs that the problem decides; the other constexprs belong to a configuration."""


def bindings(kernel: str, form: Form) -> dict[str, str]:
    """Which value of the call each parameter takes, by name."""
    special: Mapping[str, str] = {}
    if kernel == "state_passing":
        special = SEQUENCE_BINDING
    elif kernel == "scan" and form != "walk":
        special = SEGMENT_BINDING
    return {name: special.get(name, name) for name in PARAMETERS[kernel]}


def _argument(layout: ScanLayout, name: str, value: str) -> Argument:
    types = dict(layout.types)
    if value in WORKSPACES:
        return Argument(name, "*fp32", "aligned")
    if value in INDEX_POINTERS:
        # Slots are optional without a variant of their own: null, and has_final_slots 0.
        present = value in types or (value == "final_slots" and "final_states" in types)
        return Argument(name, "*i32", "unaligned") if present else Argument(name, "none")
    if value in types:
        vector = value in VECTORISED and layout.aligned
        return Argument(name, f"*{types[value]}", "aligned" if vector else "unaligned")
    if value in ("D", "z", "dt_bias", "initial_states", "final_states", "chunk_states"):
        return Argument(name, "none")
    if value in ("dt_min", "dt_max"):
        return Argument(name, "fp32")
    kind = "i64" if value.endswith(WIDE_SUFFIXES) else "i32"
    return Argument(name, kind, "%16" if layout.aligned and value in VECTOR_STRIDES else "")


VECTOR_STRIDES = frozenset(
    f"{tensor}_{axis}"
    for tensor, axes in {
        "x": ("batch", "token", "head"),
        "B": ("batch", "token", "group"),
        "C": ("batch", "token", "group"),
        "out": ("batch", "token", "head"),
        "initial": ("slot", "head", "row"),
        "final": ("slot", "head", "row"),
        "states": ("slot", "head", "row"),
    }.items()
    for axis in axes
)
"""Strides whose divisibility lets a row be read in 16-byte pieces."""


def static_values(layout: ScanLayout) -> dict[str, int | float]:
    """Scalar values that stay for a layout."""
    state = layout.headdim * layout.dstate
    return {
        **dict(layout.strides),
        "nheads": layout.nheads,
        "heads_per_group": layout.nheads // layout.ngroups,
        "dt_min": layout.dt_limit[0],
        "dt_max": layout.dt_limit[1],
        "has_final_slots": int(layout.has("final_slots")),
        "states_slot": layout.nheads * state,
        "states_head": state,
        "states_row": layout.dstate,
    }


def count_values(layout: ScanLayout, counts: Counts) -> dict[str, int]:
    """Scalar values that change with the counts, those of `COUNT_NAMES`."""
    return {
        "num_spans": counts.spans,
        "span_tokens": counts.span_tokens,
        "rows": counts.rows(layout.blocking.chunk),
    }


def workspace(layout: ScanLayout, counts: Counts, form: Form) -> dict[str, int]:
    """Bytes of each workspace of one call, in the order they are laid out."""
    chunk = layout.blocking.chunk
    sizes = {"decay_terms": counts.rows(chunk) * (2 * layout.nheads * chunk * 4)}
    if form != "walk":
        cells = segments(layout, counts, form) * layout.nheads
        sizes["states"] = cells * (layout.headdim * layout.dstate * 4)
        sizes["segment_decay"] = cells * 4
    return sizes


Extent = int | Literal["rows", "spans", "segments", "sequences"]


def grid_shape(
    kernel: str, layout: ScanLayout, form: Form, configuration: Configuration
) -> tuple[Extent, Extent, Extent]:
    """Programs along x, y and z; the extent that the counts decide is named."""
    chosen = dict(configuration.constexprs)
    if kernel == "decay":
        return "rows", _divide(layout.nheads, _whole(chosen["BLOCK_H"])), 1
    if kernel == "state_passing":
        blocks = _divide(layout.headdim * layout.dstate, _whole(chosen["BLOCK"]))
        return blocks, layout.nheads, "sequences"
    parts = _divide(layout.headdim, _whole(chosen["BLOCK_P"]))
    return layout.nheads * parts, "spans" if form == "walk" else "segments", 1


def extents(layout: ScanLayout, counts: Counts, form: Form) -> dict[Extent, int]:
    """The extents that counts decide."""
    return {
        "rows": counts.rows(layout.blocking.chunk),
        "spans": counts.spans,
        "segments": segments(layout, counts, form),
        "sequences": counts.sequences,
    }


def grid(
    kernel: str, layout: ScanLayout, counts: Counts, form: Form, configuration: Configuration
) -> tuple[int, int, int]:
    """`grid_shape` with the counts filled in."""
    named = extents(layout, counts, form)
    x, y, z = (named.get(e, e) for e in grid_shape(kernel, layout, form, configuration))
    return _whole(x), _whole(y), _whole(z)


def launch_abi() -> str:
    """sha256 over what the kernels and the launcher must agree on: parameters in order, the
    constexprs of a key, bindings, and the workspace's layout (by version)."""
    agreed = {
        "parameters": PARAMETERS,
        "constexprs": CONSTEXPRS,
        "bindings": [SEQUENCE_BINDING, SEGMENT_BINDING],
        "workspaces": WORKSPACES,
        "wide": WIDE_SUFFIXES,
        "layout": 2,
    }
    return hashlib.sha256(canonical_json(agreed).encode()).hexdigest()


def _divide(value: int, by: int) -> int:
    return -(-value // by)


def _whole(value: Constant) -> int:
    assert isinstance(value, int)
    return value
