"""Inspecting: what is inside a bundle."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from bundle_builders import (
    B200,
    H100,
    launch,
    manifest,
    signature,
    variant,
    write_bundle,
    write_small_bundle,
)
from cubin_builders import fake_cubin

from ssd_aot.bundle.manifest import Tuning
from ssd_aot.bundle.store import Bundle
from ssd_aot.verification.inspecting import describe, render


def tuned_bundle(path: Path) -> Bundle:
    models = ("nemotron-3-super-120b-a12b-with-a-longer-name", "bamba-9b")
    signatures = [
        signature(model=model, tp=tp, state_dtype=state, chunk_size=chunk)
        for model in models
        for tp in (1, 2, 4, 8, 16, 32)
        for state in ("bf16", "fp16", "fp32")
        for chunk in (64, 128, 256)
    ]
    ids = [s.id for s in signatures]
    plain, spilling = fake_cubin(90, b"plain"), fake_cubin(90, b"spilling")
    scan, passing = launch("chunk_scan"), launch("state_passing_with_a_rather_long_kernel_name")
    variants = [
        variant(plain, launch=scan, signatures=ids, tuning=Tuning("measured", True, 11.5, 14.0)),
        variant(spilling, launch=passing, registers=255, spill_bytes=64, signatures=ids),
    ]
    made = manifest(variants, signatures)
    return write_bundle(
        path, made, {v.object.path: d for v, d in zip(variants, (plain, spilling), strict=True)}
    )


def test_everything_is_counted(tmp_path: Path) -> None:
    bundle = write_small_bundle(tmp_path / "b")

    data = json.loads(json.dumps(describe(bundle)))

    assert data["digest"] == bundle.digest
    assert [t["name"] for t in data["targets"]] == [B200.name, H100.name]
    assert (data["signatures"], data["launches"], data["variants"]) == (2, 2, 4)
    assert data["objects"]["count"] == 4
    assert data["objects"]["bytes"] == sum(v.object.size_bytes for v in bundle.manifest.variants)
    assert data["tuning"] == {"default": {"variants": 4, "unchecked": 4}}


def test_each_kernel_shows_its_resources(tmp_path: Path) -> None:
    kernels = describe(tuned_bundle(tmp_path / "b"))["kernels"]

    assert kernels["chunk_scan"]["registers"] == [128, 128]
    assert kernels["chunk_scan"]["spilling"] == 0
    (name,) = kernels.keys() - {"chunk_scan"}
    assert kernels[name]["spill_bytes"] == [64, 64]
    assert kernels[name]["spilling"] == 1


def test_tuning_counts_say_what_nobody_checked(tmp_path: Path) -> None:
    bundle = tuned_bundle(tmp_path / "b")

    assert describe(bundle)["tuning"] == {
        "default": {"variants": 1, "unchecked": 1},
        "measured": {"variants": 1, "unchecked": 0},
    }
    assert "1 default (1 unchecked), 1 measured" in render(bundle)


def test_every_signature_is_listed_with_its_coverage(tmp_path: Path) -> None:
    coverage = describe(tuned_bundle(tmp_path / "b"))["coverage"]

    assert len(coverage["signatures"]) == 2 * 6 * 3 * 3
    assert coverage["kernels_outside"] == "unknown"


def test_the_text_fits_a_terminal_and_shows_the_digest(tmp_path: Path) -> None:
    bundle = tuned_bundle(tmp_path / "b")

    text = render(bundle)

    assert max(map(len, text.splitlines())) <= 80
    assert bundle.digest in text
    assert "bamba-9b" in text


def test_an_incomplete_bundle_says_so_first_and_names_what_is_missing(tmp_path: Path) -> None:
    whole = write_small_bundle(tmp_path / "b")
    made = replace(whole.manifest, missing=("chunk_scan[" + "N=1, " * 40 + "]",))
    contents = {path: (whole.path / path).read_bytes() for path, _, _ in made.files}

    text = render(write_bundle(tmp_path / "c", made, contents))

    assert "INCOMPLETE" in text
    assert "chunk_scan[N=1" in text
    assert max(map(len, text.splitlines())) <= 80
