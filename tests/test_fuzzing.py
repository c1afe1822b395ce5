"""Fuzzing: gaps are found, whoever made them, and told by their smallest batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from bundle_builders import H200
from command_line import TINY, ssd_aot
from fuzzing_builders import LARGE, NARROW, SUPER, WIDE, drawn, fuzzed, spec_of
from planned_bundles import held_by, identities, plan_of, planned_bundle
from spec_builders import write_spec

from ssd_aot import plan as planning
from ssd_aot import tracing
from ssd_aot.errors import SpecError
from ssd_aot.fuzzing import fuzzer
from ssd_aot.fuzzing.fuzzer import Held
from ssd_aot.fuzzing.launch_code import launch_code
from ssd_aot.fuzzing.misses import covering_spec, described, flow
from ssd_aot.launches import Launch
from ssd_aot.layouts import Form
from ssd_aot.signatures import Signature, expand
from ssd_aot.sources.batches import batches
from ssd_aot.spec import Spec, load_spec, shipped_spec


@pytest.fixture(scope="module")
def nemotron() -> Spec:
    return load_spec([shipped_spec(SUPER)])


@pytest.fixture(scope="module")
def whole(nemotron: Spec) -> Held:
    return held_by(plan_of(nemotron))


# Specs whose plans once had gaps, all found by drawing, and some that never had.
WHOLE = {
    "the smallest": TINY,
    "every kind of call": WIDE,
    "a page that begins with an odd column": NARROW,
    "one token without alignment to rely on": LARGE + "matrix: {layout: [unaligned]}\n",
    "uneven aligned lengths": """\
version: 1
models: {m: {nheads: 80, headdim: 64, dstate: 128, ngroups: 8, chunk_size: 256}}
matrix: {lengths: [chunk_aligned], num_seqs: [2]}
""",
}


@pytest.mark.parametrize("case", WHOLE)
def test_a_plan_holds_everything_that_the_spec_s_batches_ask_for(case: str, tmp_path: Path) -> None:
    spec = spec_of(WHOLE[case], tmp_path)

    report = fuzzed(spec, held_by(plan_of(spec)))

    assert not report.missing, [str(f) for f in report.findings()]


def test_whichever_variant_is_removed_is_missed_within_a_thousand_batches() -> None:
    spec = load_spec([shipped_spec(SUPER), shipped_spec("zamba2-7b")])

    report = fuzzed(spec, held_by(plan_of(spec)), 1000)

    assert report.asked == report.held == 33


def no_long_batches(signature: Signature, cut_tokens: int) -> Iterator[Any]:
    return (
        b
        for b in batches(signature, cut_tokens)
        if sum(b.lengths) < cut_tokens or len(b.lengths) > 99
    )


def only_dense_caches(signature: Signature, cut_tokens: int) -> Iterator[Any]:
    return (replace(b, paged=False) for b in batches(signature, cut_tokens))


def pruned(keep: Callable[[Signature], bool]) -> Callable[[Spec], tuple[Signature, ...]]:
    return lambda spec: tuple(s for s in expand(spec) if keep(s))


def relabelled(**fields: Any) -> Callable[[Spec], tuple[Signature, ...]]:
    return lambda spec: tuple(replace(s, **fields) for s in expand(spec))


# What is patched and with what, a spec that the mistake hurts, and the smallest batch shown.
PLANTED: dict[str, tuple[Any, str, Any, str, str]] = {
    "a form left out": (tracing, "batches", no_long_batches, TINY, "2 sequences of 256, 1 tokens"),
    "one sequence pruned": (
        planning, "expand", pruned(lambda s: s.num_seqs != (1, 1)), LARGE, "1 sequence of 257",
    ),
    "initial states pruned": (
        planning, "expand", pruned(lambda s: not s.has_initstates), LARGE, "with initial states",
    ),
    "an alignment class left out": (
        planning, "expand", relabelled(layout="engine"),
        LARGE + "matrix: {layout: [unaligned]}\n", "skew start",
    ),
    "paged state caches left out": (tracing, "batches", only_dense_caches, NARROW, "pages"),
    "a state dtype left out": (
        planning, "expand", pruned(lambda s: s.state_dtype == "fp32"),
        LARGE + "matrix: {state_dtype: [fp32, fp16]}\n", "states fp16",
    ),
    "a tensor-parallel size left out": (
        planning, "expand", pruned(lambda s: s.tp == 1),
        LARGE.replace("ngroups: 8", "ngroups: 8, tp: [1, 8]").replace("256", "512"), "large tp 8",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PLANTED)
def test_a_gap_planted_in_the_planner_is_found_within_a_thousand_batches_and_shrunk(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, name, mistake, text, smallest = PLANTED[case]
    spec = spec_of(text, tmp_path)
    right = plan_of(spec)
    monkeypatch.setattr(module, name, mistake)
    wrong = plan_of(spec)

    report = fuzzed(spec, held_by(wrong), 1000, planned=identities(wrong))

    lacked = {launch for _, launch in identities(right) - identities(wrong)}
    assert lacked
    assert {miss.launch.identity for miss in report.misses} == lacked
    assert smallest in "; ".join(described(miss.example) for miss in report.misses)
    assert all("a gap in the planner" in miss.finding().mend for miss in report.misses)


def is_scan(form: Form, initial_states: bool) -> Callable[[Launch], bool]:
    """A scan of one form; in segments its initial states are the segments' own."""
    segment = {"walk": 0, "segments": 512, "short_segments": 128}[form]

    def matches(launch: Launch) -> bool:
        values = dict(launch.constexprs)
        kernel = "scan" if form == "walk" else "state_passing"
        return (launch.kernel, values.get("SEGMENT"), values.get("HAS_INITSTATES")) == (
            kernel, segment, initial_states,
        )  # fmt: skip

    return matches


SMALLEST = {
    ("walk", False): "1 sequence of 1 token, without initial states",
    ("walk", True): "1 sequence of 1 token, with initial states",
    ("short_segments", False): "1 sequence of 257 tokens, without initial states",
    ("segments", True): "1 sequence of 513 tokens, with initial states",
}


@pytest.mark.parametrize(("form", "initial_states"), SMALLEST)
def test_a_miss_is_shrunk_to_the_smallest_batch_that_asks_for_it(
    form: Form, initial_states: bool, nemotron: Spec, whole: Held
) -> None:
    removed = is_scan(form, initial_states)
    left = replace(whole, launches=tuple(la for la in whole.launches if not removed(la)))

    misses = fuzzed(nemotron, left).misses

    assert len(misses) == 2  # float32 states and float16 ones
    for miss in misses:
        said = described(miss.example)
        assert said.startswith(SMALLEST[form, initial_states])
        assert said.endswith("called as varlen")
        assert "behind" not in said
        assert miss.first < 1000


def test_the_spec_that_a_miss_names_covers_it(tmp_path: Path) -> None:
    """Whatever the batch: options of the call, ranges of sequences, aligned lengths."""
    spec = spec_of(WIDE, tmp_path)
    code = launch_code("builtin")
    assert code is not None
    for number, batch in enumerate(drawn(spec, 400)[::20]):
        text = flow(covering_spec(batch))
        covering = load_spec([write_spec(tmp_path, text, f"{number}.yaml")])

        planned = {launch for _, launch in identities(plan_of(covering))}

        assert {launch.identity for launch in code.launches(batch, H200)} <= planned, text


def test_misses_beyond_those_searched_for_are_counted(
    nemotron: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzzer, "EXPLAINED", 2)

    report = fuzzed(nemotron, Held(H200, ()), 200)

    assert report.missing > 2
    assert len(report.misses) == 2
    assert report.findings()[-1].what.startswith(f"{report.missing - 2} more")


def words(text: str) -> str:
    return " ".join(text.split())


def is_removed(launch: Launch) -> bool:
    return is_scan("segments", True)(launch)


def test_verify_draws_batches_and_says_how_many_a_second(tmp_path: Path) -> None:
    bundle = planned_bundle(tmp_path / "b", spec_of(TINY, tmp_path))

    result = ssd_aot("verify", bundle.path, "--fuzz", "600")

    assert result.exit_code == 0, result.output
    said = words(result.stdout)
    assert "ok fuzz: 600 random batches of seed 0 asked for 8 of the 8 launches and for no" in said
    assert "batches a second on one core" in said
    assert "drew 600/600" in result.stderr


def test_verify_names_the_smallest_batch_that_a_removed_variant_hurts(tmp_path: Path) -> None:
    """Removed from the manifest too, so that all hashes hold."""
    bundle = planned_bundle(tmp_path / "b", spec_of(TINY, tmp_path), left_out=is_removed)

    result = ssd_aot("verify", bundle.path, "--fuzz", "1000")

    assert result.exit_code == 1
    said = words(result.stdout)
    assert "failed fuzz: no state_passing for h200" in said
    assert "the smallest: 2 sequences of 16384, 1 tokens, with initial states, tiny tp 1" in said
    assert "build it anew: the spec's plan has this launch" in said
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_the_json_form_holds_the_example_and_the_spec(tmp_path: Path) -> None:
    bundle = planned_bundle(tmp_path / "b", spec_of(TINY, tmp_path), left_out=is_removed)

    result = ssd_aot("verify", bundle.path, "--fuzz", "1000", "--seed", "3", "--json")

    found = json.loads(result.stdout)["fuzz"]
    assert (found["batches"], found["seed"], found["missing"]) == (1000, 3, 1)
    (miss,) = found["misses"]
    assert miss["example"]["sequences"] == [
        {"cached": 0, "tokens": 16384}, {"cached": 0, "tokens": 1}
    ]  # fmt: skip
    assert miss["planned"]
    assert miss["spec"]["models"]["tiny"]["nheads"] == 4
    assert yaml.safe_load(flow(miss["spec"])) == miss["spec"]


def test_batches_are_those_of_the_spec_that_is_given(tmp_path: Path) -> None:
    bundle = planned_bundle(tmp_path / "b", spec_of(TINY, tmp_path))
    wider = write_spec(tmp_path, TINY.replace("[many]", "[many], state_dtype: [fp16]"))

    result = ssd_aot("verify", bundle.path, "--fuzz", "300", "--spec", wider)

    assert result.exit_code == 1
    assert "state_dtype: [fp16]" in words(result.stdout)


def test_a_source_without_launch_code_here_is_not_fuzzed_and_that_is_said(tmp_path: Path) -> None:
    spec = replace(spec_of(TINY, tmp_path), source="recording")
    bundle = planned_bundle(tmp_path / "b", spec)

    said = words(ssd_aot("verify", bundle.path, "--fuzz", "10").stdout)

    assert "not checked fuzz: this release has no launch code to draw batches for" in said


def test_a_plan_can_be_fuzzed_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = write_spec(tmp_path, TINY)
    arguments = ("plan", "--gpu", "h200", "--spec", spec, "--fuzz", "500")

    whole = ssd_aot(*arguments)
    monkeypatch.setattr(tracing, "batches", no_long_batches)
    gap = ssd_aot(*arguments, "--json")

    assert whole.exit_code == 0
    assert "500 random batches of seed 0 asked for 8 of the 8 launches" in words(whole.stdout)
    assert gap.exit_code == 1
    assert json.loads(gap.stdout)["fuzz"]["missing"] == 6


def test_a_spec_of_which_nothing_is_served_is_refused(tmp_path: Path) -> None:
    code = launch_code("builtin")
    assert code is not None
    spec = spec_of(NARROW, tmp_path)
    with (
        mock.patch.object(code, "served", lambda deployment: None),
        pytest.raises(SpecError, match="no batch can be drawn"),
    ):
        fuzzer.fuzz(spec, code, [], batches=1, seed=0)
