"""What a report knows of a bundle: measurements that fit, coverage, gaps and open points."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from bundle_builders import B200, H100, H200, launch, manifest, signature, variant
from report_builders import (
    FOUR,
    SESSION,
    entry_of,
    launch_named,
    record_file,
    report_bundle,
)

from ssd_aot.bundle.manifest import Manifest, Tuning, VariantEntry
from ssd_aot.bundle.store import Bundle, Problem
from ssd_aot.launches import Argument, Launch
from ssd_aot.report.concerns import Concern, find_concerns
from ssd_aot.report.coverage import cover
from ssd_aot.report.evidence import Evidence, Lack, Records
from ssd_aot.report.gaps import find_gaps, lacking
from ssd_aot.report.launch_groups import Member, group_launches
from ssd_aot.tuning.choices import RecordFile

MEASURED = {"scan": Tuning("measured", True, 100.0, 110.0)}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return report_bundle(tmp_path_factory.mktemp("knowledge") / "b", tuning=MEASURED)


def whole_scan(bundle: Bundle) -> VariantEntry:
    wanted = launch_named(bundle, "scan", SEGMENT=0)
    return next(v for v in bundle.manifest.variants if v.launch == wanted)


def find(bundle: Bundle, *files: RecordFile) -> Evidence | Lack:
    return Records(files, bundle.manifest).find(whole_scan(bundle))


def test_an_entry_of_the_bundles_own_gpu_sources_and_compiler_fits(bundle: Bundle) -> None:
    made = entry_of(whole_scan(bundle).launch)

    assert find(bundle, record_file(made)) == Evidence(made, "h200.json", "h200")


@pytest.mark.parametrize(
    ("changes", "gpu", "reason"),
    [
        ({"source": "0" * 64}, "h200", "measured with other kernel sources than the bundle's"),
        ({}, "b200", "measured on another architecture (b200)"),
        ({"identity": "0" * 64}, "h200", "no record at hand has this launch"),
    ],
)
def test_what_does_not_fit_is_not_shown_and_says_why(
    bundle: Bundle, changes: dict[str, Any], gpu: str, reason: str
) -> None:
    made = entry_of(whole_scan(bundle).launch, **changes)

    found = find(bundle, record_file(made, gpu=gpu))

    assert isinstance(found, Lack)
    assert reason in found.reason


def test_without_any_record_the_report_says_that_there_was_none(bundle: Bundle) -> None:
    assert find(bundle) == Lack("no record was at hand")


def test_measurements_under_other_conditions_carry_a_caveat(bundle: Bundle) -> None:
    launch = whole_scan(bundle).launch
    other = entry_of(launch, session=replace(SESSION, ptxas_version="13.1"))
    relative = record_file(other, gpu="h100")

    found = find(bundle, relative)

    assert isinstance(found, Evidence)
    assert found.caveats[0] == "measured on h100, not on h200"
    assert "13.1, which is not what compiled the bundle" in found.caveats[1]


def test_a_bundle_that_holds_another_configuration_than_the_winner_is_told(bundle: Bundle) -> None:
    found = find(bundle, record_file(entry_of(whole_scan(bundle).launch, winner=1)))

    assert isinstance(found, Evidence)
    assert found.caveats == ("the bundle holds another configuration than this record's winner",)


def test_of_several_entries_the_one_with_fewest_caveats_is_shown(bundle: Bundle) -> None:
    launch = whole_scan(bundle).launch
    borrowed = record_file(entry_of(launch), gpu="gh200", name="a.json")
    recompiled = entry_of(launch, session=replace(SESSION, triton_content="0" * 64))
    own = record_file(entry_of(launch), name="c.json")

    found = find(bundle, borrowed, record_file(recompiled, name="b.json"), own)

    assert isinstance(found, Evidence)
    assert found.file == "c.json"


def test_a_bundle_of_unknown_sources_has_no_entry_that_fits(tmp_path: Path) -> None:
    foreign = manifest([variant(b"code", target=H200)], [signature()], targets=(H200,))
    made = entry_of(launch_named(report_bundle(tmp_path / "b"), "scan"))
    entry = replace(made, identity=launch().identity, kernel="chunk_scan")

    found = Records([record_file(entry)], foreign).find(foreign.variants[0])

    assert isinstance(found, Lack)
    assert "other kernel sources" in found.reason


def test_trials_stand_fastest_first_and_the_rejected_last(bundle: Bundle) -> None:
    made = entry_of(whole_scan(bundle).launch, winner=2)
    found = Evidence(made, "h200.json", "h200")

    trials = Member(whole_scan(bundle), found).trials()

    assert [t.score for t in trials][:3] == [1.0, 1.1, 1.2]
    assert trials[-1].score is None and trials[-1].trial.rejected
    assert [t.winner for t in trials].index(True) == 0
    assert [t.held for t in trials].index(True) == [t.default for t in trials].index(True) == 1


def test_launches_of_one_geometry_form_a_group_and_each_has_words_of_its_own(
    bundle: Bundle,
) -> None:
    groups = group_launches(bundle.manifest, Records([], bundle.manifest))

    scans = [group for group in groups if group.kernel == "scan"]
    assert [group.words for group in scans] == [
        "head dim 64, state dim 128, whole sequences, bf16",
        "head dim 64, state dim 128, segments of 512 tokens, bf16",
        "head dim 64, state dim 128, segments of 128 tokens, bf16",
    ]
    assert {member.words for member in scans[0].members} == {
        "fp32 initial states, fp32 final states",
        "fp16 initial states, fp16 final states",
    }


def test_launches_of_an_engine_are_told_apart_by_what_differs() -> None:
    kernel = "engine.ops:_scan_kernel"
    launches = [
        Launch(kernel, (("hdim", 64), ("stride_x", 1)), (Argument("dt", "*bf16", kind),))
        for kind in ("aligned", "unaligned")
    ]
    made = manifest([variant(b"x", launch=one) for one in launches], [], source="vllm")

    (group,) = group_launches(made, Records([], made))

    assert group.words == "hdim 64"
    assert {m.words for m in group.members} == {"dt *bf16 aligned", "dt *bf16 unaligned"}


def test_a_signature_is_as_well_founded_as_its_weakest_launch(bundle: Bundle) -> None:
    coverage = cover(bundle.manifest, "h200", [])

    (row,) = coverage.rows
    assert (coverage.tp_sizes, coverage.target) == ((1, 2), "h200")
    assert coverage.lines == ((),) and coverage.columns == (("fp16 states",), ("fp32 states",))
    cell = row.blocks[1][0][0]
    assert cell is not None
    assert cell.kind == "default"
    assert cell.launches == {"measured": 3, "default": 5}
    assert "bf16 inputs" in coverage.shared and "2 to 64 sequences" in coverage.shared


@pytest.mark.parametrize(
    ("statuses", "kind"),
    [
        (("measured", "measured"), "measured"),
        (("measured", "borrowed from h100"), "borrowed"),
        (("borrowed from h100", "pinned"), "pinned"),
        (("pinned", "default"), "default"),
    ],
)
def test_the_weakest_status_counts(statuses: tuple[str, str], kind: str) -> None:
    one = signature()
    entries = [
        variant(name.encode(), launch=launch(name), signatures=[one.id], tuning=Tuning(status))
        for name, status in zip(("a", "b"), statuses, strict=True)
    ]

    assert cover(manifest(entries, [one]), "h100", []).kinds == {kind: 1}


def test_combinations_that_the_spec_leaves_out_stay_empty() -> None:
    every = product(("fp32", "fp16"), (True, False), ((1, 1), (2, 64)))
    signatures = [
        signature(state_dtype=state, has_initstates=init, num_seqs=seqs)
        for state, init, seqs in every
    ][1:]

    (row,) = cover(manifest([], signatures), "h100", []).rows

    cells = [cell for line in row.blocks[1] for cell in line]
    assert [len(line) for line in row.blocks[1]] == [4, 4]
    assert cells.count(None) == 1


def test_models_are_sorted_by_the_numbers_in_their_names() -> None:
    signatures = [signature(model=name) for name in ("h1-34b", "h1-3b", "h1-0.5b")]

    rows = cover(manifest([], signatures), "h100", []).rows

    assert [row.model for row in rows] == ["h1-0.5b", "h1-3b", "h1-34b"]


def test_a_signature_that_no_launch_names_is_missing() -> None:
    assert cover(manifest([], [signature()]), "h100", []).kinds == {"missing": 1}


def without_passing(launch: Launch) -> bool:
    return launch.kernel != "state_passing" or dict(launch.constexprs)["SEGMENT"] != 512


@pytest.fixture(scope="module")
def incomplete(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return report_bundle(tmp_path_factory.mktemp("gaps") / "b", held=without_passing).manifest


def test_a_missing_launch_names_every_signature_that_needs_it(incomplete: Manifest) -> None:
    gaps = find_gaps(incomplete)

    assert len(gaps) == 2
    assert {gap.kernel for gap in gaps} == {"state_passing"}
    assert sorted(lacking(gaps, "h200")) == sorted(one.id for one in FOUR)
    assert cover(incomplete, "h200", lacking(gaps, "h200")).kinds == {"missing": 4}


def test_a_missing_launch_of_another_release_is_kept_as_its_text(incomplete: Manifest) -> None:
    (gap,) = find_gaps(replace(incomplete, missing=("old_kernel[N=1](x: *bf16) on h200",)))

    assert (gap.text, gap.words) == ("old_kernel[N=1](x: *bf16) on h200", "")


def concerns(
    made: Manifest, *problems: Problem, files: tuple[RecordFile, ...] = ()
) -> list[Concern]:
    groups = group_launches(made, Records(files, made))
    return list(find_concerns(made, problems, find_gaps(made), groups))


def titles(made: Manifest) -> list[str]:
    return [concern.title for concern in concerns(made)]


def tuned(*tunings: Tuning) -> Manifest:
    one = signature()
    entries = [
        variant(str(n).encode(), launch=launch(N=n), signatures=[one.id], tuning=tuning)
        for n, tuning in enumerate(tunings)
    ]
    return manifest(entries, [one])


DEFAULT, PINNED = Tuning("default"), Tuning("pinned")
CHECKED = Tuning("measured", checked=True, median_us=10.0, default_us=10.0)


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (tuned(DEFAULT, CHECKED), ["1 of 2 launches is untuned", "1 of 2 launches is unchecked"]),
        (tuned(Tuning("borrowed from h100")), ["1 of 1 launch is borrowed"]),
        (tuned(PINNED, PINNED), ["2 of 2 launches are fixed by the spec"]),
        (tuned(CHECKED), ["1 of 1 launch is measured, and the measurements are not at hand"]),
    ],
)
def test_what_is_not_known_is_named(made: Manifest, wanted: list[str]) -> None:
    assert set(wanted) <= set(titles(made))


def test_missing_launches_and_damage_come_before_what_is_open(incomplete: Manifest) -> None:
    damage = Problem("size", "objects/x.cubin", (), "3 bytes", "9 bytes", "copy it again")

    found = concerns(incomplete, damage)

    assert [concern.level for concern in found[:3]] == ["bad", "bad", "open"]
    assert found[0].items == ("objects/x.cubin: size; found 3 bytes, wanted 9 bytes",)
    assert found[1].title == "Incomplete: 2 launches could not be built"
    assert "4 signatures of 4 need one" in found[1].text
    assert all("needed by 2 signatures" in item for item in found[1].items)


def test_a_bundle_measured_throughout_with_its_record_at_hand_has_no_open_point(
    tmp_path: Path,
) -> None:
    kernels = ("decay", "scan", "segment_states", "state_passing")
    bundle = report_bundle(tmp_path / "b", tuning=dict.fromkeys(kernels, CHECKED))
    entries = [entry_of(v.launch, trials=3) for v in bundle.manifest.variants]

    assert concerns(bundle.manifest, files=(record_file(*entries),)) == []


def test_with_several_gpus_open_points_say_which(tmp_path: Path) -> None:
    made = report_bundle(tmp_path / "b", FOUR[:1], targets=(H100, B200)).manifest

    untuned = concerns(made)[0]

    assert "scan for b200: head dim 64, state dim 128, whole sequences, bf16" in untuned.items
    assert "`ssd-aot tune --gpu b200` and `ssd-aot tune --gpu h100`" in untuned.mend
