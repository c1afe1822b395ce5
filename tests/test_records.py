"""Records are text, and merge to the same whatever the order."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tuning_builders import SESSION, later

from ssd_aot.errors import UsageError
from ssd_aot.launches import Configuration
from ssd_aot.tuning.journal import Journal
from ssd_aot.tuning.record_text import from_text, read_record, to_text, write_record
from ssd_aot.tuning.records import Entry, FormPoint, Record, Trial, merge, tuning_identity

CONFIGURATIONS = [Configuration((("BLOCK", size),), 4, 1) for size in (64, 128)]
TRIALS = [
    Trial(CONFIGURATIONS[0], times_us=(12.5, 100.25), error=1e-3, registers=168, spill_bytes=0),
    Trial(CONFIGURATIONS[1], rejected="outputs off by nan"),
]
ENTRY = Entry(
    identity="a" * 64, kernel="scan", launch="scan[HEADDIM=64](x: *bf16 aligned)",
    session=SESSION, source="b" * 64, offered="c" * 64, offered_count=2,
    workloads=("128h 1x256", "128h 4x8192"), default=CONFIGURATIONS[0],
    winner=CONFIGURATIONS[0], trials=tuple(TRIALS),
)  # fmt: skip
POINT = FormPoint("64x128 bf16", 128, 1, 2048, 100.0, 90.5, "2026-01-02T03:04:05Z")

dates = st.sampled_from(["2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"])
entries = st.builds(
    lambda number, date, time, found: replace(
        ENTRY,
        identity=f"{number:x}" * 64,
        session=later(SESSION, date),
        winner=CONFIGURATIONS[0] if found else None,
        trials=(replace(TRIALS[0], times_us=(time, time)),),
    ),
    st.integers(0, 3), dates, st.sampled_from([1.0, 2.0]), st.booleans(),
)  # fmt: skip
points = st.builds(
    lambda heads, date, time: replace(POINT, heads=heads, date=date, walk_us=time),
    st.integers(1, 3), dates, st.sampled_from([1.0, 2.0]),
)  # fmt: skip


@st.composite
def records(draw: st.DrawFn) -> Record:
    empty = Record("h200", "builtin")
    made = empty.with_entries(draw(st.lists(entries, max_size=4)))
    for point in draw(st.lists(points, max_size=3)):
        made = merge(made, replace(empty, forms=(point,)))
    return made


@given(records(), records(), records())
def test_merging_does_not_depend_on_order_or_repetition(a: Record, b: Record, c: Record) -> None:
    both = merge(a, b)

    assert both == merge(b, a)
    assert merge(both, c) == merge(a, merge(b, c))
    assert merge(both, a) == both and merge(a, a) == a


@given(records())
def test_a_record_comes_back_from_its_text(made: Record) -> None:
    assert from_text(to_text(made), "record") == made


def test_of_two_measurements_of_a_launch_the_later_is_kept() -> None:
    early = Record("h200", "builtin").with_entries([ENTRY])
    late = early.with_entries([replace(ENTRY, session=later(SESSION, "2027-01-01T00:00:00Z"))])
    without = late.with_entries([replace(late.entries[0], winner=None)])

    assert merge(early, late) == merge(late, early) == late
    assert merge(early, without) == early


def test_records_of_two_gpus_are_not_merged() -> None:
    with pytest.raises(UsageError, match="cannot be merged"):
        merge(Record("h200", "builtin"), Record("h100", "builtin"))


def test_a_candidate_is_one_line_of_the_text() -> None:
    text = to_text(Record("h200", "builtin").with_entries([ENTRY]))

    lines = [line for line in text.splitlines() if '"configuration"' in line]

    assert len(lines) == len(TRIALS)
    assert '"times_us": [12.5, 100.25]' in lines[0]
    assert '"rejected": "outputs off by nan"' in lines[1]
    assert all(part in text for part in (SESSION.device, SESSION.driver, SESSION.date, "3.7.1"))


OF_ENGINE = replace(
    ENTRY, identity=tuning_identity("m:scan", "[64]"), kernel="m:scan", tuning="[64]",
    engine="1.2", judged=("d" * 64,),
)  # fmt: skip


def test_entries_of_both_kinds_come_back_and_only_engines_name_key_and_version() -> None:
    made = Record("h200", "vllm").with_entries([ENTRY, OF_ENGINE])

    text = to_text(made)

    assert from_text(text, "record") == made
    of_engine, of_builtin = (line for line in text.splitlines() if '"kernel"' in line)
    assert '"tuning": "[64]", "engine": "1.2", "judged": [' in of_engine
    assert not any(name in of_builtin for name in ('"tuning"', '"engine"', '"judged"'))


def test_shipped_records_are_written_again_as_they_are() -> None:
    shipped = sorted(Path(str(resources.files("ssd_aot") / "tuning_records")).glob("*.json"))

    assert shipped
    for path in shipped:
        assert to_text(read_record(path)) == path.read_text()


def test_an_engines_measurements_stand_on_its_version_and_on_what_they_were_judged_in() -> None:
    """A builtin entry's stand on its launch, as ever: its journal's places are the same."""
    assert ENTRY.basis.launch == ENTRY.identity
    others = [replace(OF_ENGINE, engine="1.3"), replace(OF_ENGINE, judged=("e" * 64,))]
    assert len({entry.basis.id for entry in (OF_ENGINE, *others)}) == 3


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (('"format": 1', '"format": 2'), "format"),
        (('"kernel": "scan"', '"kernel": 3'), "entries[0].kernel"),
        (('"times_us": [12.5', '"times_us": [-1'), "entries[0].trials[0].times_us[0]"),
        ((f'"session": "{SESSION.id}"', '"session": "none"'), "entries[0].session"),
    ],
)
def test_what_is_no_record_is_refused_by_file_and_field(
    change: tuple[str, str], place: str
) -> None:
    text = to_text(Record("h200", "builtin").with_entries([ENTRY]))
    assert change[0] in text

    with pytest.raises(UsageError) as caught:
        from_text(text.replace(*change, 1), "h200.json")

    assert caught.value.where == f"h200.json: {place}"


def test_text_that_is_not_json_is_refused_by_line(tmp_path: Path) -> None:
    path = tmp_path / "h200.json"
    path.write_text("{\n<<<<<<<\n")

    with pytest.raises(UsageError) as caught:
        read_record(path)

    assert caught.value.where == f"{path}:2"


def test_writing_leaves_the_record_and_nothing_else(tmp_path: Path) -> None:
    made = Record("h200", "builtin").with_entries([ENTRY])

    write_record(tmp_path / "new" / "h200.json", made)

    assert [path.name for path in (tmp_path / "new").iterdir()] == ["h200.json"]
    assert read_record(tmp_path / "new" / "h200.json") == made


def test_a_journal_gives_back_its_trials_and_passes_over_a_torn_line(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "h200.json")
    for trial in TRIALS:
        journal.add(ENTRY.basis, ENTRY.workloads, trial)
    journal.close()
    with journal.path.open("a") as file:
        file.write('{"basis": "')

    again = Journal(tmp_path / "h200.json")
    again.add(ENTRY.basis, ENTRY.workloads, replace(TRIALS[1], rejected="states off by 1.0e+00"))
    again.close()
    last = Journal(tmp_path / "h200.json").trials(ENTRY.basis, ENTRY.workloads)

    assert last[CONFIGURATIONS[0]] == TRIALS[0]
    assert last[CONFIGURATIONS[1]].rejected == "states off by 1.0e+00"


def test_a_journal_knows_nothing_for_another_basis_or_other_workloads(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "h200.json", Record("h200", "builtin").with_entries([ENTRY]))

    assert len(journal.trials(ENTRY.basis, ENTRY.workloads)) == 2
    assert not journal.trials(replace(ENTRY.basis, source="d" * 64), ENTRY.workloads)
    assert not journal.trials(ENTRY.basis, ENTRY.workloads[:1])
