"""Plans: every launch once, with all its reasons; what cannot be planned is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import SHORT, TINY, ssd_aot
from spec_builders import write_spec

from ssd_aot.errors import SpecError
from ssd_aot.plan import Plan, make_plan
from ssd_aot.spec import load_spec
from ssd_aot.targets import target


def planned(folder: Path, text: str, *gpus: str) -> Plan:
    return make_plan(load_spec([write_spec(folder, text)]), [target(g) for g in gpus or ("h200",)])


def test_equal_launches_merge_and_keep_every_signature_that_needs_them(tmp_path: Path) -> None:
    plan = planned(tmp_path, SHORT.replace("matrix: {", "matrix: {state_dtype: [fp32, fp16], "))

    needed = {str(p.launch.kernel): len(p.signatures) for p in plan.launches}
    assert needed == {"decay": 2, "scan": 1}
    assert plan.variants == 3
    assert len({planned.launch.identity for planned in plan.launches}) == 3


def test_every_signature_is_needed_by_some_launch_on_every_target(tmp_path: Path) -> None:
    plan = planned(tmp_path, TINY, "h200", "b200")

    for name in ("h200", "b200"):
        named = {s for p in plan.launches if p.target.name == name for s in p.signatures}
        assert named == {signature.id for signature in plan.signatures}


def test_the_json_form_shows_the_class_of_every_argument(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, TINY)

    data: dict[str, Any] = json.loads(
        ssd_aot("plan", "--gpu", "h200", "--spec", spec, "--json").stdout
    )

    assert set(data) == {"signatures", "launches", "variants"}
    scan = next(launch for launch in data["launches"] if launch["kernel"] == "scan")
    assert set(scan) == {
        "target", "kernel", "constexprs", "arguments", "options", "candidates", "signatures",
    }  # fmt: skip
    assert scan["arguments"]["x"] == "*bf16 aligned"
    assert scan["arguments"]["x_token"] == "i32 %16"
    assert scan["arguments"]["z"] == "none"
    assert scan["candidates"][0]["num_warps"] in (4, 8)


def test_the_token_budget_alone_changes_no_plan(tmp_path: Path) -> None:
    """C12."""
    few = planned(tmp_path, TINY + "max_num_batched_tokens: 4096\n")
    many = planned(tmp_path, TINY + "max_num_batched_tokens: 65536\n")

    assert [p.launch for p in few.launches] == [p.launch for p in many.launches]


def test_chunk_aligned_lengths_that_do_not_fit_are_refused_with_the_numbers(
    tmp_path: Path,
) -> None:
    """C07."""
    text = TINY.replace(
        "matrix: {", "matrix: {lengths: [chunk_aligned], chunk_size: [256], "
    ).replace("[many]", "[4]")
    spec = write_spec(tmp_path, text + "max_num_batched_tokens: 512\n")

    result = ssd_aot("plan", "--gpu", "h200", "--spec", spec)

    assert result.exit_code == 2
    assert "256" in result.stderr
    assert "512" in result.stderr


GROUPS = {
    "neither divides": ("nheads: 15, headdim: 64, dstate: 64, ngroups: 3", 5, 2, 0),
    "a copy of one group a rank": ("nheads: 128, headdim: 64, dstate: 64, ngroups: 8", 32, 0, 1),
    "two groups a rank": ("nheads: 128, headdim: 64, dstate: 64, ngroups: 8", 4, 0, 2),
}


@pytest.mark.parametrize("case", GROUPS)
def test_groups_follow_the_engines_rule(case: str, tmp_path: Path) -> None:
    """C09."""
    geometry, tp, code, groups = GROUPS[case]
    spec = write_spec(tmp_path, f"version: 1\nmodels:\n  m: {{{geometry}, tp: [{tp}]}}\n")

    result = ssd_aot("plan", "--gpu", "h200", "--spec", spec, "--json")

    assert result.exit_code == code
    if code:
        assert "nheads 15, ngroups 3, tp 5" in result.stderr
        assert "wanted: tp divides nheads" in result.stderr
    else:
        assert {s["ngroups"] for s in json.loads(result.stdout)["signatures"]} == {groups}


@pytest.mark.parametrize("chunk_size", [40, 50])
def test_a_chunk_size_that_is_no_power_of_two_is_refused(chunk_size: int, tmp_path: Path) -> None:
    """C10, C62."""
    text = TINY.replace("matrix: {", f"matrix: {{chunk_size: [{chunk_size}], ")

    result = ssd_aot("plan", "--gpu", "h200", "--spec", write_spec(tmp_path, text))

    assert result.exit_code == 2
    assert str(chunk_size) in result.stderr
    assert "power of two" in result.stderr


def test_a_pin_leaves_the_candidates_that_have_it(tmp_path: Path) -> None:
    plan = planned(tmp_path, TINY + "pin:\n  decay: {BLOCK_H: 32}\n")

    decay = next(p for p in plan.launches if p.launch.kernel == "decay")
    assert [dict(c.constexprs)["BLOCK_H"] for c in decay.candidates] == [32]


PINS = {
    "no such value": ("decay: {BLOCK_H: 33}", "the pin matches no candidate"),
    "a misspelt parameter": ("decay: {BLOK_H: 32}", "no candidate has this parameter"),
    "no such kernel": ("decoy: {BLOCK_H: 32}", "the pin names no kernel of the plan"),
}


@pytest.mark.parametrize("case", PINS)
def test_a_pin_that_fits_nothing_is_refused_with_its_line(case: str, tmp_path: Path) -> None:
    pin, says = PINS[case]

    with pytest.raises(SpecError, match=says) as caught:
        planned(tmp_path, TINY + f"pin:\n  {pin}\n")

    assert "spec.yaml:6" in caught.value.where
    assert caught.value.exit_code == 2


def test_a_misspelt_pin_is_told_the_nearest_parameter(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        planned(tmp_path, TINY + "pin:\n  decay: {BLOK_H: 32}\n")

    assert caught.value.mend == "write BLOCK_H"


def test_the_terminal_form_is_short_however_many_signatures_there_are() -> None:
    shown = ssd_aot("plan", "--gpu", "h200").stdout.splitlines()

    assert shown[0].startswith("512 signatures need ")
    assert max(map(len, shown)) < 400
