"""The manifest: what a bundle holds, with one canonical JSON form."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

from ssd_aot.bundle.entries import (
    FORMAT,
    CodeObject,
    KernelText,
    ManifestParts,
    Source,
    TargetEntry,
    Toolchain,
    Tuning,
    VariantEntry,
    object_path,
)
from ssd_aot.bundle.manifest_json import write_manifest
from ssd_aot.bundle.manifest_reading import read_manifest
from ssd_aot.bundle.needs import Needs

__all__ = [
    "FORMAT",
    "CodeObject",
    "KernelText",
    "Manifest",
    "Needs",
    "Source",
    "TargetEntry",
    "Toolchain",
    "Tuning",
    "VariantEntry",
    "object_path",
]


@dataclass(frozen=True)
class Manifest(ManifestParts):
    """A manifest and its text; the fields are those of `ManifestParts`."""

    def to_json_text(self) -> str:
        """The canonical form: equal manifests give equal bytes, in whatever order they list
        signatures, targets, variants and files. Raises BundleError where the parts disagree."""
        return write_manifest(self)

    @classmethod
    def from_json_text(cls, text: str | bytes, where: str) -> Manifest:
        """Read strictly; `where` names the file in messages. Raises BundleError with the field."""
        return read_manifest(text, where, cls)

    @cached_property
    def digest(self) -> str:
        """The bundle's digest: sha256 of the canonical form."""
        return hashlib.sha256(self.to_json_text().encode()).hexdigest()
