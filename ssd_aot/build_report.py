"""What a build did, as JSON and for a terminal."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ssd_aot.bundle.manifest import Manifest
from ssd_aot.tables import WIDTH


@dataclass(frozen=True)
class BuildReport:
    """What a build did. `fresh` compilations ran, `reused` came from an earlier, unfinished build;
    `unchanged` means that the bundle was there already and was left as it is. `reproducible` is
    false where this host kept ptxas from choosing the same registers each time; `records` counts
    the choices that came from each tuning record's file. `notes` say what a build could not
    settle, and `before` is the digest of the bundle that was there."""

    path: Path
    manifest: Manifest
    fresh: int
    reused: int
    compile_s: float
    dropped: tuple[str, ...]
    failures: tuple[str, ...]
    unchanged: bool = False
    reproducible: bool = True
    records: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    before: str = ""

    @property
    def replaced(self) -> str:
        """The digest of another bundle whose place this one took, or nothing."""
        return "" if self.before == self.manifest.digest else self.before

    def to_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "digest": self.manifest.digest,
            "complete": self.manifest.complete,
            "unchanged": self.unchanged,
            "reproducible": self.reproducible,
            "signatures": len(self.manifest.signatures),
            "variants": len(self.manifest.variants),
            "bytes": sum(size for _, _, size in self.manifest.files),
            "compiled": self.fresh,
            "reused": self.reused,
            "compile_s": round(self.compile_s, 2),
            "tuning": dict(Counter(e.tuning.status for e in self.manifest.variants)),
            "records": dict(self.records),
            "dropped": list(self.dropped),
            "failures": list(self.failures),
            "notes": list(self.notes),
            "replaced": self.replaced,
        }

    def __str__(self) -> str:
        facts = self.to_json()
        tuned = [f"tuned: {status} ({n})" for status, n in facts["tuning"].items()]
        held = (
            f"  {facts['signatures']} signatures, {facts['variants']} variants, "
            f"{facts['bytes'] / 1e6:.1f} MB"
        )
        together = "; ".join((held, ", ".join(tuned)))
        made = f"compiled {self.fresh}, reused {self.reused}, in {self.compile_s:.1f} s"
        if self.unchanged:
            idle = not (self.fresh or self.reused)
            made = f"{'nothing to do' if idle else made + ', the same again'}, the bundle is there"
        return "\n".join(
            (
                f"{self.path}: {'complete' if facts['complete'] else 'INCOMPLETE'}, {made}",
                *([together] if len(together) <= WIDTH else [held, *(f"  {t}" for t in tuned)]),
                f"  digest {facts['digest']}",
                *([f"  replaces the bundle {self.replaced[:12]}…"] if self.replaced else []),
            )
        )
