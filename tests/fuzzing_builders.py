"""Specs to draw batches for, and the drawing, in tests."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from spec_builders import write_spec

from ssd_aot.fuzzing.batch import Batch
from ssd_aot.fuzzing.drawing import Drawer
from ssd_aot.fuzzing.fuzzer import FuzzReport, Held, fuzz
from ssd_aot.fuzzing.launch_code import launch_code
from ssd_aot.fuzzing.promises import deployments
from ssd_aot.spec import Spec, load_spec

SUPER = "nemotron-3-super-120b"

WIDE = """\
version: 1
models:
  narrow: {nheads: 5, headdim: 48, dstate: 16, ngroups: 1, tp: [1, 5], chunk_size: 64}
matrix:
  IS_CONT_BATCHED: [false, true]
  seq_idx: [false, true]
  intermediate_states: [false, true]
  layout: [engine, unaligned]
  lengths: [any, chunk_aligned]
  num_seqs: [1, 3..9, many]
exclude:
  - {lengths: chunk_aligned, tp: 5}
  - {HAS_INITSTATES: true, num_seqs: many}
max_num_seqs: 40
"""
"""Every kind of call, in ranges that overlap."""

LARGE = """\
version: 1
models: {large: {nheads: 256, headdim: 64, dstate: 128, ngroups: 8}}
"""
NARROW = """\
version: 1
models: {narrow: {nheads: 5, headdim: 48, dstate: 128, ngroups: 1}}
"""


def spec_of(text: str, folder: Path) -> Spec:
    return load_spec([write_spec(folder, text)])


def drawn(spec: Spec, count: int, seed: int = 0) -> list[Batch]:
    code = launch_code("builtin")
    assert code is not None
    return list(itertools.islice(Drawer(deployments(spec), code, seed), count))


def fuzzed(spec: Spec, there: Held, count: int = 1000, **more: Any) -> FuzzReport:
    code = launch_code("builtin")
    assert code is not None
    return fuzz(spec, code, [there], batches=count, seed=0, **more)
