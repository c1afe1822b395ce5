"""The description of the operation against the Triton functions that it describes."""

from __future__ import annotations

import pytest
from signature_builders import signature

from ssd_aot.candidates import BY_HAND, candidates
from ssd_aot.launches import Configuration, Launch
from ssd_aot.layouts import Blocking, Counts, FormRule
from ssd_aot.operation import CONSTEXPRS, PARAMETERS, grid, launches, workspace
from ssd_aot.sources.batches import lengths_in_segments
from ssd_aot.sources.builtin import (
    GLUON_MODULES,
    MODULES,
    _layouts,
    enumerate_launches,
    kernel_reference,
)
from ssd_aot.targets import TARGETS, Target, target
from ssd_aot.triton_compat import kernel_function

RULE = FormRule.for_gpu(132)
FEW, MANY = signature(num_seqs=(1, 1), nheads=16, ngroups=1), signature(num_seqs=(2, 64))


def configured(gpu: Target) -> list[tuple[Launch, Configuration]]:
    """One launch of each kernel in every configuration for `gpu`."""
    found = {launch.kernel: launch for launch in enumerate_launches(FEW, RULE)}
    assert found.keys() == MODULES.keys()
    return [(launch, c) for launch in found.values() for c in candidates(launch, gpu)]


@pytest.mark.parametrize("gpu", TARGETS, ids=lambda gpu: gpu.name)
def test_parameters_are_those_of_each_configurations_function_in_order(gpu: Target) -> None:
    for launch, configuration in configured(gpu):
        function = kernel_function(kernel_reference(launch.kernel, configuration))
        runtime = tuple(p.name for p in function.params if not p.is_constexpr)
        assert runtime == PARAMETERS[launch.kernel]


@pytest.mark.parametrize("gpu", TARGETS, ids=lambda gpu: gpu.name)
def test_problem_and_configuration_together_give_every_constexpr_once(gpu: Target) -> None:
    for launch, configuration in configured(gpu):
        function = kernel_function(kernel_reference(launch.kernel, configuration))
        wanted = sorted(p.name for p in function.params if p.is_constexpr)
        chosen = [name for name, _ in configuration.constexprs]
        assert sorted([*CONSTEXPRS[launch.kernel], *chosen]) == wanted


def test_kernels_by_hand_are_for_hopper_alone() -> None:
    for gpu in TARGETS:
        by_hand = {
            kernel_reference(launch.kernel, configuration)
            for launch, configuration in configured(gpu)
            if BY_HAND in dict(configuration.constexprs)
        }
        wanted = {f"{module}:{kernel}" for kernel, module in GLUON_MODULES.items()}
        assert by_hand == (wanted if gpu.arch == "sm_90a" else set())


def test_every_launch_gives_each_parameter_once_in_order() -> None:
    for one in (FEW, MANY):
        for launch in enumerate_launches(one, RULE):
            assert tuple(a.name for a in launch.arguments) == PARAMETERS[launch.kernel]
            assert tuple(name for name, _ in launch.constexprs) == CONSTEXPRS[launch.kernel]


FORMS = {
    "enough sequences and heads to fill the GPU": ((64, 132, 8192), "walk"),
    "one long sequence of few heads": ((16, 1, 8192), "segments"),
    "one short sequence": ((16, 1, 256), "walk"),
}


@pytest.mark.parametrize("case", FORMS)
def test_the_form_follows_from_what_the_host_knows(case: str) -> None:
    (nheads, sequences, tokens), wanted = FORMS[case]
    layout = _layouts(signature(nheads=nheads, ngroups=1))[0]

    assert RULE.choose(layout, Counts(tokens, sequences, sequences)) == wanted


def test_rows_cover_any_lengths() -> None:
    """Every sequence may end in a partly filled block."""
    lengths = [1, 64, 65, 700, 0]
    counts = Counts(sum(lengths), len(lengths), len(lengths))

    assert counts.rows(64) >= sum(-(-length // 64) for length in lengths)


def test_grids_and_workspaces_are_positive_for_every_candidate() -> None:
    layout = _layouts(FEW)[0]
    counts = Counts(4096, 1, 1)

    for form in ("walk", "segments"):
        assert all(size > 0 for size in workspace(layout, counts, form).values())
        for launch in launches(layout, form):
            for configuration in candidates(launch, target("h200")):
                extents = grid(launch.kernel, layout, counts, form, configuration)
                assert all(extent >= 1 for extent in extents)
                assert max(extents[1:]) <= 65535


def test_a_segment_is_a_whole_number_of_chunks() -> None:
    assert Blocking().segment % Blocking().chunk == 0


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "batch"])
@pytest.mark.parametrize("heads", [8, 64])
def test_the_lengths_to_judge_long_segments_by_run_in_them(heads: int, packed: bool) -> None:
    one = signature(num_seqs=(1, 1), nheads=heads, ngroups=1, is_cont_batched=packed)

    lengths = lengths_in_segments(one, RULE)

    assert lengths is not None
    counts = Counts(sum(lengths), 1, 1, 0 if packed else lengths[0])
    assert RULE.choose(_layouts(one)[0], counts) == "segments"
    fewer = counts._replace(tokens=sum(lengths) - 1, span_tokens=max(counts.span_tokens - 1, 0))
    assert RULE.choose(_layouts(one)[0], fewer) != "segments"


def test_where_no_batch_runs_in_long_segments_there_are_no_lengths_to_judge_them_by() -> None:
    assert lengths_in_segments(signature(num_seqs=(64, 64), nheads=128), RULE) is None
    assert lengths_in_segments(signature(nheads=2, ngroups=1), RULE) is None
