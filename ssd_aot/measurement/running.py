"""Every signature of a bundle, executed on the GPU here and judged by the float64 recurrence."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ssd_aot.bundle.store import Bundle
from ssd_aot.launches import Launch
from ssd_aot.layouts import Blocking, FormRule
from ssd_aot.problems import Problem, Results, make_problem
from ssd_aot.progress import Progress
from ssd_aot.runtime.loading import LoadedBundle, load
from ssd_aot.signatures import Signature
from ssd_aot.sources.batches import lengths_in_segments, lengths_of
from ssd_aot.sources.builtin import enumerate_launches
from ssd_aot.verification.findings import Finding

TOLERANCE = {"bf16": 6e-3, "fp16": 1e-3, "fp32": 5e-5}
"""Largest relative error, norm of the difference over norm of the reference. The weights of the
masked product, the state as an operand and the output are each rounded to the input dtype, whose
half unit is 2**-9 for bf16 and 2**-12 for fp16: three such roundings, independent and spread evenly
over a unit, come to 0.6 units in norm. fp32 products are taken in three tf32 passes, near 1e-6 each
over sums of some hundred terms."""


@dataclass(frozen=True)
class Judgement:
    """One problem's outcome: relative errors of outputs and states, and what was wrong if so."""

    out_error: float
    state_error: float
    wrong: str = ""


def run_signatures(
    bundle: Bundle, *, device: int = 0, on_progress: Callable[[Progress], None] | None = None
) -> Iterator[Finding]:
    """Load the bundle on `device` and run each of its signatures on fresh random inputs.

    Each runs twice into outputs filled with NaN and must give the same bits; a sequence change
    inside a chunk, odd lengths, an empty sequence where several are allowed, and an odd number of
    decode tokens before the views are among the lengths. Batches in long segments, which take the
    reference long, run where their launches have not run before. One finding a failed signature,
    and one with the largest errors of those that passed.
    """
    loaded = load(bundle.path, devices=[device], warm=True)
    assert isinstance(loaded, LoadedBundle), "an engine's kernels run in the engine alone"
    rule = loaded.rule_on(device)
    judged: set[Launch] = set()
    worst: dict[str, Judgement] = {}
    passed = 0
    total = len(bundle.manifest.signatures)
    began = time.monotonic()
    for done, (identity, fields) in enumerate(bundle.manifest.signatures, 1):
        signature = Signature.from_json(fields)
        every = [*lengths_of(signature), *_unjudged_segments(signature, rule, judged)]
        for seed, lengths in enumerate(every):
            judgement = judge(signature, lengths, device, seed)
            if judgement.wrong:
                yield Finding(
                    "failed", "results", f"{identity}, lengths {lengths}",
                    judgement.wrong, f"within {TOLERANCE[signature.dtype]:g}, the same twice",
                    "tune or rebuild for this GPU, and report the configuration",
                )  # fmt: skip
                break
            before = worst.get(signature.dtype, Judgement(0.0, 0.0))
            worst[signature.dtype] = Judgement(
                max(before.out_error, judgement.out_error),
                max(before.state_error, judgement.state_error),
            )
        else:
            passed += 1
        if on_progress is not None:
            elapsed = time.monotonic() - began
            remaining = elapsed / done * (total - done)
            on_progress(
                Progress(done, total, done - passed, elapsed, remaining, "ran", piece=identity)
            )
    errors = ", ".join(
        f"{dtype}: outputs {j.out_error:.1e}, states {j.state_error:.1e}"
        for dtype, j in sorted(worst.items())
    )
    name = torch.cuda.get_device_name(device)
    yield Finding(
        "ok" if passed == total else "failed", "results",
        f"{passed} of {total} signatures right on {name}; largest relative errors: {errors}",
    )  # fmt: skip


def _unjudged_segments(
    signature: Signature, rule: FormRule, judged: set[Launch]
) -> list[tuple[int, ...]]:
    """A batch in long segments, if one of its launches is not yet among the `judged`."""
    lengths = lengths_in_segments(signature, rule)
    launches = {
        launch
        for launch in enumerate_launches(signature, rule)
        if dict(launch.constexprs).get("SEGMENT") == Blocking().segment
    }
    if lengths is None or launches <= judged:
        return []
    judged |= launches
    return [lengths]


def judge(signature: Signature, lengths: tuple[int, ...], device: int, seed: int) -> Judgement:
    """Run one problem twice and compare it with the reference."""
    problem = make_problem(
        signature, lengths, device=torch.device("cuda", device), decode_tokens=seed, seed=seed
    )
    wanted = problem.reference()
    first, second = problem.run(), problem.run()
    return judge_results(problem, wanted, first, second)


def judge_results(problem: Problem, wanted: Results, first: Results, second: Results) -> Judgement:
    """Errors of `first` against `wanted`, and whether `second` has the same bits."""
    out_error = relative_error(first.out, wanted.out)
    state_error = 0.0
    same = torch.equal(first.out, second.out)
    if first.states is not None and wanted.states is not None:
        assert second.states is not None
        state_error = relative_error(first.states, wanted.states)
        same = same and torch.equal(first.states, second.states)
    s = problem.signature
    wrong = []
    # Written so that a NaN, from a wrong result or an element never written, counts as wrong.
    if not out_error <= TOLERANCE[s.dtype]:
        wrong.append(f"outputs off by {out_error:.1e}")
    if not state_error <= max(TOLERANCE[s.dtype], TOLERANCE[s.state_dtype]):
        wrong.append(f"states off by {state_error:.1e}")
    if not same and not wrong:
        wrong.append("other bits at the second run")
    return Judgement(out_error, state_error, "; ".join(wrong))


def relative_error(found: Tensor, wanted: Tensor) -> float:
    """Norm of the difference over norm of the reference; NaN where anything is NaN."""
    scale = wanted.norm().clamp_min(1e-30)
    return float((found.double() - wanted).norm() / scale)
