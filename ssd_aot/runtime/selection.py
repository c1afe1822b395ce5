"""What of a bundle a load is for: some of its models, at one tensor-parallel size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ssd_aot.bundle.manifest import Manifest, VariantEntry
from ssd_aot.errors import UsageError
from ssd_aot.signatures import Signature


@dataclass(frozen=True)
class Selection:
    """`models` empty and `tp` None stand for all."""

    models: frozenset[str] = frozenset()
    tp: int | None = None

    @classmethod
    def of(cls, manifest: Manifest, models: Sequence[str] | None, tp: int | None) -> Selection:
        """Raises UsageError for a model or a size that the bundle does not have."""
        have = sorted({signature["model"] for _, signature in manifest.signatures})
        for model in models or ():
            if model not in have:
                raise UsageError("the bundle has no such model", where="models", found=model,
                                 wanted=", ".join(have), mend="name one of these")  # fmt: skip
        sizes = sorted({signature["tp"] for _, signature in manifest.signatures})
        if tp is not None and tp not in sizes:
            raise UsageError("the bundle has no such tensor-parallel size", where="tp",
                             found=str(tp), wanted=", ".join(map(str, sizes)),
                             mend="add it to the spec's tp lists")  # fmt: skip
        return cls(frozenset(models or ()), tp)

    def names(self, signature: str) -> bool:
        """Whether the signature of that id is one of these."""
        model, size, _ = signature.split("/", 2)
        if self.models and model not in self.models:
            return False
        return self.tp in (None, int(size.removeprefix("tp")))

    def needs(self, entry: VariantEntry) -> bool:
        """Whether one of these signatures needs the variant. What was recorded has no signatures,
        and serves whatever is loaded."""
        return not entry.signatures or any(map(self.names, entry.signatures))

    def signatures(self, manifest: Manifest) -> list[Signature]:
        return [
            Signature.from_json(fields) for name, fields in manifest.signatures if self.names(name)
        ]


EVERYTHING = Selection()
