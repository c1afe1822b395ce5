"""An executor that runs the kernels in Triton's interpreter on CPU tensors."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ssd_aot.launches import Configuration, Constant
from ssd_aot.layouts import Blocking, Counts, Form, ScanLayout
from ssd_aot.operation import bindings, count_values, grid, launches, static_values, workspace

MODULES = {
    "decay": "decay",
    "scan": "scan",
    "segment_states": "segments",
    "state_passing": "segments",
}


SMALL = Blocking(chunk=16, segment=32)


@dataclass
class Interpreter:
    """Runs `form` with small tiles; workspaces are filled with NaN first."""

    form: Form
    blocking: Blocking = SMALL
    block_p: int = 16
    tail_p: int = 0
    block_n: int = 16
    state_np: bool = False
    ran: list[str] = field(default_factory=list)

    def run(self, tensors: Mapping[str, Tensor], layout: ScanLayout, counts: Counts) -> None:
        form = "segments" if layout.chunk_states else self.form
        spaces = {
            name: torch.full((size // 4,), float("nan"))
            for name, size in workspace(layout, counts, form).items()
        }
        # Where the launcher passes a null pointer, the interpreter wants a tensor.
        nowhere = {"final_slots": torch.zeros(1, dtype=torch.int32)}
        scalars = {**static_values(layout), **count_values(layout, counts)}
        values = {**nowhere, **scalars, **tensors, **spaces}
        for launch in launches(layout, form):
            module = importlib.import_module(f"ssd_aot.kernels.{MODULES[launch.kernel]}")
            bound = bindings(launch.kernel, form)
            arguments = {
                a.name: None if a.type == "none" else values[bound[a.name]]
                for a in launch.arguments
            }
            configuration = self._configuration(launch.kernel, layout)
            programs = grid(launch.kernel, layout, counts, form, configuration)
            self.ran.append(launch.kernel)
            getattr(module, launch.kernel)[programs](
                **arguments, **dict(launch.constexprs), **dict(configuration.constexprs)
            )

    def _configuration(self, kernel: str, layout: ScanLayout) -> Configuration:
        n = max(self.block_n, 1 << (layout.dstate - 1).bit_length())
        tile: dict[str, Constant] = {
            "BLOCK_P": self.block_p, "BLOCK_N": n, "STATE_NP": self.state_np, "PDL": False,
            "STAGES": 1,
        }  # fmt: skip
        every: dict[str, dict[str, Constant]] = {
            "decay": {"BLOCK_H": 2, "PDL": False},
            "state_passing": {"BLOCK": 64, "PDL": False, "STAGES": 1},
            "segment_states": tile,
            "scan": {**tile, "TAIL_P": self.tail_p, "PREFETCH": False},
        }
        return Configuration(tuple(every[kernel].items()), 4, 1)


def teach_bfloat16_dots() -> None:
    """Triton's interpreter (read in 3.7.1) multiplies the bit patterns of bfloat16 tiles as
    integers; here they are widened to float32 first."""
    from triton.language import bfloat16, float32
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle, _convert_float

    plain = InterpreterBuilder.create_dot

    def widen(tile: TensorHandle) -> TensorHandle:
        if tile.dtype.scalar != bfloat16:
            return tile
        data = _convert_float(tile.data, bfloat16, float32, None).view("float32")
        return TensorHandle(data, float32)

    def create_dot(self, a, b, d, *rest):  # type: ignore[no-untyped-def]
        return plain(self, widen(a), widen(b), d, *rest)

    InterpreterBuilder.create_dot = create_dot
