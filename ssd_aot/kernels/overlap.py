"""Programmatic dependent launch (PTX griddepcontrol, sm_90 and later).

The next launch on the stream may start once every program of this one has said so, and waits where
it first reads what this one wrote: that hides its launch and its programs' start.
"""

import triton
import triton.language as tl


@triton.jit
def let_next_start():
    tl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; mov.u32 $0, 0;", "=r", [],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def wait_for_previous():
    """Until the launch before is complete and its writes are visible."""
    tl.inline_asm_elementwise(
        "griddepcontrol.wait; mov.u32 $0, 0;", "=r", [],
        dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip
