"""Which configuration a build takes from the records there are, and what it says of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from bundle_builders import TOOLCHAIN
from tuning_builders import SESSION, SOURCES, compiled, launch_of

from ssd_aot.bundle.manifest import Toolchain, Tuning
from ssd_aot.errors import BuildError
from ssd_aot.plan import PlannedLaunch
from ssd_aot.targets import target
from ssd_aot.tuning.choices import Choice, Chooser, RecordFile, find_records, refuse_untuned
from ssd_aot.tuning.record_text import write_record
from ssd_aot.tuning.records import Entry, Record, Trial, offered_digest

PLANNED = launch_of(compiled(), "scan", HAS_INITSTATES=True).planned
DEFAULT, BEST = PLANNED.candidates[:2]


def entry(planned: PlannedLaunch = PLANNED) -> Entry:
    return Entry(
        identity=planned.launch.identity, kernel=planned.launch.kernel,
        launch=str(planned.launch), session=SESSION,
        source=dict(SOURCES)[planned.launch.kernel], offered=offered_digest(planned.candidates),
        offered_count=len(planned.candidates), workloads=("2h 1x256",), default=DEFAULT,
        winner=BEST, trials=(Trial(DEFAULT, (20.0,)), Trial(BEST, (16.0,))),
    )  # fmt: skip


def file(made: Entry, gpu: str = "h200", name: str = "tuning/h200.builtin.json") -> RecordFile:
    return RecordFile(Path(name), Record(gpu, "builtin").with_entries([made]))


def choose(*files: RecordFile, toolchain: Toolchain = TOOLCHAIN, pinned: bool = False) -> Choice:
    chooser = Chooser(files, toolchain, SOURCES)
    return chooser.choose(PLANNED.launch, PLANNED.target, PLANNED.candidates, pinned=pinned)


def test_a_winner_measured_on_the_same_is_measured_and_checked() -> None:
    found = choose(file(entry()))

    assert found.configuration == BEST
    assert found.tuning == Tuning("measured", True, median_us=16.0, default_us=20.0)
    assert found.origin == Path("tuning/h200.builtin.json")


def test_without_a_record_the_default_is_taken_and_said() -> None:
    assert choose() == Choice(DEFAULT, Tuning("default"))


def test_a_pin_overrides_what_was_measured() -> None:
    assert choose(file(entry()), pinned=True) == Choice(DEFAULT, Tuning("pinned"))


@pytest.mark.parametrize(
    ("gpu", "made", "toolchain", "status"),
    [
        ("h100", entry(), TOOLCHAIN, "borrowed from h100"),
        ("h200", replace(entry(), source="0" * 64), TOOLCHAIN,
         "borrowed from h200 (other kernel sources)"),
        ("h200", replace(entry(), offered="0" * 64), TOOLCHAIN,
         "borrowed from h200 (other candidate list)"),
        ("h200", entry(), replace(TOOLCHAIN, triton_content="0" * 64),
         "borrowed from h200 (other Triton)"),
        ("gh200", entry(), replace(TOOLCHAIN, ptxas_version="13.0", triton_content="0" * 64),
         "borrowed from gh200 (other Triton, ptxas)"),
    ],
)  # fmt: skip
def test_what_was_measured_on_something_else_is_borrowed_and_says_from_what(
    gpu: str, made: Entry, toolchain: Toolchain, status: str
) -> None:
    found = choose(file(made, gpu), toolchain=toolchain)

    assert found.configuration == BEST
    assert found.tuning == Tuning(status, checked=False)


def test_another_version_string_of_the_same_triton_is_the_same() -> None:
    found = choose(file(entry()), toolchain=replace(TOOLCHAIN, triton_version="3.7.1+git"))

    assert found.tuning.status == "measured"


def test_a_record_of_another_architecture_is_not_used() -> None:
    assert choose(file(entry(), "b200")).tuning.status == "default"


def test_a_winner_that_is_no_candidate_any_more_is_not_used() -> None:
    gone = replace(BEST, num_warps=16)

    assert choose(file(replace(entry(), winner=gone))).tuning.status == "default"


def test_the_first_measured_file_wins_over_any_that_is_borrowed() -> None:
    stale = file(replace(entry(), source="0" * 64, winner=DEFAULT), name="given.json")
    own, shipped = file(entry(), name="own.json"), file(entry(), name="shipped.json")

    assert choose(stale, own, shipped).origin == Path("own.json")
    assert choose(file(entry(), "h100"), stale).origin == Path("given.json")


def test_records_are_asked_in_the_order_given_then_the_projects_then_the_packages(
    tmp_path: Path,
) -> None:
    for name in ("given.json", "tuning/b.json", "tuning/a.json"):
        write_record(tmp_path / name, Record("h200", "builtin"))

    found = find_records([tmp_path / "given.json"], tmp_path / "tuning")

    names = [file.path.name for file in found]
    assert names[:3] == ["given.json", "a.json", "b.json"]
    assert all(file.path.parent.name == "tuning_records" for file in found[3:])


def test_shipped_records_can_be_read_and_are_of_known_gpus(tmp_path: Path) -> None:
    for shipped in find_records([], tmp_path):
        assert target(shipped.record.gpu).name == shipped.record.gpu


def test_require_tuned_refuses_defaults_and_borrowed_choices_by_name() -> None:
    choices = [
        ("scan A", Tuning("measured", True)),
        ("scan B", Tuning("borrowed from h100")),
        ("scan C", Tuning("default")),
    ]

    with pytest.raises(BuildError) as caught:
        refuse_untuned(choices)

    assert "2 of 3" in caught.value.what
    assert "scan B: borrowed from h100" in caught.value.found
    assert "scan C: default" in caught.value.found
    refuse_untuned(choices[:1])
