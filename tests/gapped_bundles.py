"""Bundles from which somebody took entries away, with all hashes put right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ssd_aot.bundle.manifest import Manifest, VariantEntry
from ssd_aot.bundle.store import Bundle
from ssd_aot.bundle.triton_files import CachedTuning
from ssd_aot.bundle.writer import BundleWriter

Taken = Callable[[Manifest], Manifest]


def without(source: Path, out: Path, taken: Taken) -> Bundle:
    """The bundle at `source` with the manifest that `taken` leaves and the files that it names."""
    bundle = Bundle.open(source)
    left = taken(bundle.manifest)
    named = {entry.object.path for entry in left.variants}
    if left.triton is not None:
        named |= {path for path, _, _ in left.triton.files()}
    files = tuple(file for file in left.files if file[0] in named)
    writer = BundleWriter(out)
    for path, _, _ in files:
        writer.add_file(path, (bundle.path / path).read_bytes())
    writer.commit(replace(left, files=files))
    made = Bundle.open(out)
    assert not made.check_files()
    return made


def without_variant(chosen: Callable[[VariantEntry], bool]) -> Taken:
    """Without the first variant that is chosen, and without what Triton's cache has of it."""

    def taken(manifest: Manifest) -> Manifest:
        gone = next(entry for entry in manifest.variants if chosen(entry))
        triton = manifest.triton
        if triton is not None:
            kernels = tuple(k for k in triton.kernels if k.variant != gone.variant.identity)
            triton = replace(triton, kernels=kernels)
        variants = tuple(entry for entry in manifest.variants if entry != gone)
        return replace(manifest, variants=variants, triton=triton)

    return taken


def without_tuning(chosen: Callable[[CachedTuning], bool]) -> Taken:
    """Without the first tuning result that is chosen."""

    def taken(manifest: Manifest) -> Manifest:
        assert manifest.triton is not None
        gone = next(tuning for tuning in manifest.triton.tunings if chosen(tuning))
        tunings = tuple(tuning for tuning in manifest.triton.tunings if tuning != gone)
        return replace(manifest, triton=replace(manifest.triton, tunings=tunings))

    return taken
