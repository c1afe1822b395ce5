"""One rank of two, on the GPU of its number: `rank_worker.py BUNDLE {serve,mixer,strict}`.

`serve` runs the operation and prints the choices and a digest of the results; `mixer` compares a
layer whose heads are divided over the ranks with the whole of it; `strict` loads a bundle with a
gap.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from signature_builders import signature
from torch import Tensor

import ssd_aot
from ssd_aot import ops
from ssd_aot.bundle.store import Bundle
from ssd_aot.errors import BundleError
from ssd_aot.problems import make_problem

HEADS, HEADDIM, GROUPS, DSTATE, HIDDEN, TOKENS = 128, 64, 8, 128, 1024, 700


def serve(bundle: str, rank: int) -> None:
    ssd_aot.load(bundle, devices=[rank])
    problem = make_problem(signature(num_seqs=(1, 64)), (300, 1, 40), device=f"cuda:{rank}")
    results = problem.run()
    assert results.states is not None
    bits = hashlib.sha256()
    for tensor in (results.out, results.states):
        bits.update(tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes())
    # Every rank has what the other found before either ends.
    gathered: list[str | None] = [None, None]
    dist.all_gather_object(gathered, bits.hexdigest())
    assert gathered[0] == gathered[1]
    chosen = [str(entry.variant.identity) for entry in Bundle.open(bundle).manifest.variants]
    found = {
        "configurations": hashlib.sha256("".join(chosen).encode()).hexdigest(),
        "bits": bits.hexdigest(),
        "triton": "triton" in sys.modules,
    }
    print(json.dumps(found))


@dataclass(frozen=True)
class Layer:
    """A Mamba2 mixer without its gate and convolution: projections around the scan."""

    x: Tensor
    dt: Tensor
    B: Tensor
    C: Tensor
    out: Tensor
    A: Tensor
    D: Tensor
    dt_bias: Tensor

    @classmethod
    def random(cls, device: str, dtype: torch.dtype) -> Layer:
        made = torch.Generator(device="cpu").manual_seed(0)

        def weight(*shape: int) -> Tensor:
            scaled: Tensor = torch.randn(*shape, generator=made) * shape[-1] ** -0.5
            return scaled.to(device, dtype)

        return cls(
            weight(HEADS * HEADDIM, HIDDEN), weight(HEADS, HIDDEN), weight(GROUPS * DSTATE, HIDDEN),
            weight(GROUPS * DSTATE, HIDDEN), weight(HIDDEN, HEADS * HEADDIM),
            -torch.rand(HEADS, generator=made).to(device) - 0.5,
            torch.randn(HEADS, generator=made).to(device, dtype),
            torch.randn(HEADS, generator=made).to(device, dtype),
        )  # fmt: skip

    def shard(self, rank: int, ranks: int) -> Layer:
        """The heads and groups of one rank, as engines divide them."""

        def rows(tensor: Tensor) -> Tensor:
            return tensor.chunk(ranks)[rank].contiguous()

        return Layer(
            rows(self.x), rows(self.dt), rows(self.B), rows(self.C),
            self.out.chunk(ranks, dim=1)[rank].contiguous(), rows(self.A), rows(self.D),
            rows(self.dt_bias),
        )  # fmt: skip

    def __call__(self, hidden: Tensor, offsets: Tensor) -> Tensor:
        """(tokens, HIDDEN) of this rank's heads, still to be summed over ranks."""
        heads = self.A.shape[0]
        groups = self.B.shape[0] // DSTATE
        projected = F.linear(hidden, torch.cat([self.x, self.B, self.C]))
        widths = (heads * HEADDIM, groups * DSTATE, groups * DSTATE)
        x, B, C = torch.split_with_sizes(projected, widths, dim=1)
        out = torch.empty(len(hidden), heads, HEADDIM, dtype=hidden.dtype, device=hidden.device)
        states = torch.empty(1, heads, HEADDIM, DSTATE, device=hidden.device)
        # dt behind other columns of the projection, as in an engine.
        dt = F.linear(hidden, torch.cat([self.dt[:1], self.dt]))[:, 1:]
        ops.mamba_chunk_scan_combined_varlen(
            x.view(-1, heads, HEADDIM), dt, self.A, B.view(-1, groups, DSTATE),
            C.view(-1, groups, DSTATE), 128, offsets, offsets, offsets[:1], offsets[:1], out,
            D=self.D, dt_bias=self.dt_bias, initial_states=torch.zeros_like(states),
            dt_softplus=True, state_dtype=torch.float32, final_states_out=states,
            final_state_indices=torch.zeros(1, dtype=torch.int32, device=hidden.device),
        )  # fmt: skip
        return F.linear(out.flatten(1), self.out)


def mixer(bundle: str, rank: int) -> None:
    ssd_aot.load(bundle, devices=[rank])
    device = f"cuda:{rank}"
    whole = Layer.random(device, torch.bfloat16)
    hidden = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(1))
    given = hidden.to(device, torch.bfloat16)
    offsets = torch.tensor([0, TOKENS], dtype=torch.int32, device=device)
    divided = whole.shard(rank, 2)(given, offsets)
    dist.all_reduce(divided)
    alone = whole(given, offsets)

    def off(found: Tensor, wanted: Tensor) -> float:
        return float((found.float() - wanted.float()).norm() / wanted.float().norm())

    # What summing the same halves on one GPU already differs by: two roundings to bf16, not one.
    halves = whole.shard(0, 2)(given, offsets) + whole.shard(1, 2)(given, offsets)
    print(json.dumps({"error": off(divided, alone), "rounding": off(halves, alone)}))


def strict(bundle: str, rank: int) -> None:
    dist.barrier()
    began = time.monotonic()
    try:
        ssd_aot.load(bundle, devices=[rank], strict=True)
        dist.barrier()
    except BundleError as error:
        assert time.monotonic() - began < 5, "too late"
        print(" ".join(str(error).split()))
        sys.exit(7)


def main(bundle: str, what: str) -> None:
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    try:
        {"serve": serve, "mixer": mixer, "strict": strict}[what](bundle, rank)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
