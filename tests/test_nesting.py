"""Text of thousands of brackets inside one another is refused with its line, as any other fault."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ssd_aot.bundle.manifest import Manifest
from ssd_aot.errors import BundleError, SpecError, SsdAotError, UsageError
from ssd_aot.models import spec_from_file
from ssd_aot.spec import load_spec
from ssd_aot.tuning.compiled_candidates import CompiledCandidates
from ssd_aot.tuning.record_text import read_record

SPEC = "version: 1\nmodels:\n  "

READERS: dict[str, tuple[Callable[[Path], object], str, str, type[SsdAotError]]] = {
    "spec": (lambda path: load_spec([path]), SPEC, "[", SpecError),
    "spec of mappings": (lambda path: load_spec([path]), SPEC, "{a: ", SpecError),
    "manifest": (
        lambda path: Manifest.from_json_text(path.read_bytes(), str(path)),
        '{"format": 1,\n\n"spec": ', '{"a":', BundleError,
    ),
    "tuning record": (read_record, '{"format": 1,\n\n"entries": ', "[", UsageError),
}  # fmt: skip


@pytest.mark.parametrize("levels", [1_000, 100_000])
@pytest.mark.parametrize("kind", READERS)
def test_a_file_nested_without_end_is_refused_with_its_line(
    kind: str, levels: int, tmp_path: Path
) -> None:
    read, head, bracket, error = READERS[kind]
    file = tmp_path / "file"
    file.write_text(head + bracket * levels)

    with pytest.raises(error) as caught:
        read(file)

    assert caught.value.where == f"{file}:3"
    assert "more than 64 levels" in str(caught.value)
    assert caught.value.mend


def test_lines_are_counted_where_each_level_has_its_own(tmp_path: Path) -> None:
    file = tmp_path / "spec.yaml"
    file.write_text("\n".join(" " * level + "a:" for level in range(1_000)))

    with pytest.raises(SpecError) as caught:
        load_spec([file])

    assert caught.value.where == f"{file}:65"


def test_brackets_in_text_are_no_levels(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    file.write_text('["' + "[" * 100 + '",\n' + "[" * 100_000)

    with pytest.raises(UsageError) as caught:
        read_record(file)

    assert caught.value.where == f"{file}:2"


@pytest.mark.parametrize("levels", [100, 900, 100_000])
def test_what_the_parser_still_reads_is_refused_all_the_same(levels: int, tmp_path: Path) -> None:
    deep = "[" * levels + "]" * levels
    config = tmp_path / "config.json"
    config.write_text(f'{{"model_type": "bamba", "mamba_n_heads": {deep}}}')

    with pytest.raises(SpecError) as of_config:
        spec_from_file(config)
    with pytest.raises(BundleError) as of_manifest:
        Manifest.from_json_text(f'{{"format": {deep}}}', "manifest.json")

    assert "more than 64 levels" in of_config.value.found
    assert of_manifest.value.where.startswith("manifest.json:")


def test_compiled_candidates_nested_without_end_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "candidates.zip", "w") as archive:
        archive.writestr("index.json", "[" * 100_000)

    with pytest.raises(BundleError, match="more than 64 levels"):
        CompiledCandidates.read(tmp_path)
