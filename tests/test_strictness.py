"""Strict mode at load: what a bundle was planned to hold and does not ends the program there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from command_line import ROOT, ssd_aot
from gapped_bundles import Taken, without, without_tuning, without_variant

from ssd_aot.bundle.needs import unmet
from ssd_aot.bundle.store import Bundle
from ssd_aot.errors import BundleError
from ssd_aot.runtime.selection import Selection
from ssd_aot.runtime.strictness import refuse_gaps

PRUNED = "fixture_engine.operation:pruned"


def test_a_bundle_as_it_was_built_has_no_gaps(three_targets: Path, engine_bundle: Path) -> None:
    for path in (three_targets, engine_bundle):
        manifest = Bundle.open(path).manifest
        assert manifest.needs is not None
        assert list(unmet(manifest)) == []


def test_every_variant_taken_away_is_told_by_kernel_target_and_signature(
    three_targets: Path, tmp_path: Path
) -> None:
    for number, entry in enumerate(Bundle.open(three_targets).manifest.variants):
        made = without(three_targets, tmp_path / str(number), without_variant(entry.__eq__))

        with pytest.raises(BundleError, match="strict mode wants all of it") as caught:
            refuse_gaps(made)

        assert f"{entry.launch.kernel} for {entry.target}: " in caught.value.found
        assert entry.signatures[0] in caught.value.found


def engine_gaps(path: Path) -> dict[str, Taken]:
    """Every entry of an engine's bundle, by a name."""
    manifest = Bundle.open(path).manifest
    assert manifest.triton is not None
    return {entry.name: without_variant(entry.__eq__) for entry in manifest.variants} | {
        f"tuning {tuning.key}": without_tuning(tuning.__eq__) for tuning in manifest.triton.tunings
    }


def test_every_entry_of_an_engines_bundle_taken_away_is_told(
    engine_bundle: Path, tmp_path: Path
) -> None:
    for number, taken in enumerate(engine_gaps(engine_bundle).values()):
        made = without(engine_bundle, tmp_path / str(number), taken)
        with pytest.raises(BundleError, match="strict mode wants all of it"):
            refuse_gaps(made)


def test_only_the_signatures_of_the_models_that_are_loaded_count(
    engine_bundle: Path, tmp_path: Path
) -> None:
    made = without(
        engine_bundle,
        tmp_path / "b",
        without_variant(lambda e: {s.split("/")[0] for s in e.signatures} == {"odd"}),
    )

    refuse_gaps(made, Selection(frozenset({"even"})))
    with pytest.raises(BundleError):
        refuse_gaps(made, Selection(frozenset({"odd"})))


def test_verify_without_the_engine_tells_of_the_gap_too(
    engine_bundle: Path, tmp_path: Path
) -> None:
    made = without(
        engine_bundle, tmp_path / "b", without_variant(lambda e: e.launch.kernel == PRUNED)
    )

    ended = ssd_aot("verify", made.path)

    assert ended.exit_code == 1
    assert "launches that" in " ".join(ended.stdout.split())


def test_verify_runs_no_engines_kernels_and_says_so(engine_bundle: Path) -> None:
    ended = ssd_aot("verify", engine_bundle, "--run")

    assert "an engine's kernels run in the engine alone" in " ".join(ended.stdout.split())


RANK = """\
import sys, time
import torch.distributed as dist
import ssd_aot
from ssd_aot.errors import BundleError
rank, store, bundle = sys.argv[1:]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=2)
dist.barrier()
began = time.monotonic()
try:
    ssd_aot.load(bundle, strict=True)
    dist.barrier()
except BundleError as error:
    assert time.monotonic() - began < 5, "too late"
    print(error)
    sys.exit(7)
"""


@pytest.mark.parametrize("kind", ["builtin", "engine"])
def test_two_ranks_both_stop_at_load_with_the_same_message(
    kind: str, three_targets: Path, engine_bundle: Path, tmp_path: Path
) -> None:
    """So that neither waits in a collective for the other, each has a place of its own."""
    source = three_targets if kind == "builtin" else engine_bundle
    ranks = []
    for rank in ("0", "1"):
        made = without(source, tmp_path / rank / "bundle", without_variant(lambda entry: True))
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-c", RANK, rank, str(tmp_path / "store"), str(made.path)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    said = [rank.communicate(timeout=60)[0] for rank in ranks]

    assert [rank.returncode for rank in ranks] == [7, 7]
    assert said[0] == said[1]
    assert "strict mode wants all of it" in said[0]


def test_the_environment_asks_for_strict_mode_as_well(
    three_targets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ssd_aot

    made = without(three_targets, tmp_path / "b", without_variant(lambda entry: True))
    monkeypatch.setenv("SSD_AOT_STRICT", "1")

    with pytest.raises(BundleError, match="strict mode wants all of it"):
        ssd_aot.load(made.path)
