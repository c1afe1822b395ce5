"""A configuration out of tuning records: measured, borrowed and said so, or the default."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from ssd_aot.bundle.manifest import Toolchain, Tuning
from ssd_aot.errors import BuildError, SpecError, listed
from ssd_aot.launches import Configuration, Launch
from ssd_aot.layouts import FormRule
from ssd_aot.targets import Target, target
from ssd_aot.tuning.form_rules import form_rule
from ssd_aot.tuning.record_text import read_record
from ssd_aot.tuning.records import Entry, Record, Session, offered_digest

SOURCE = "builtin"
"""The source of the kernels that come with the package."""

FOLDER = Path("tuning")
"""Where a project keeps its own records, and where `build` writes what it measures."""


@dataclass(frozen=True)
class RecordFile:
    """A record and where it was read, for messages."""

    path: Path
    record: Record


@dataclass(frozen=True)
class Choice:
    """A configuration with what the manifest says of it, and the record it comes from, if any.

    `judged` are the identities of an engine's launches in which it passed the reference: one choice
    is for all launches that share a tuning key.
    """

    configuration: Configuration
    tuning: Tuning
    origin: Path | None = None
    judged: frozenset[str] = frozenset()

    def tuning_of(self, launch: str) -> Tuning:
        """What the manifest says of an engine's launch, by its identity."""
        return replace(self.tuning, checked=True) if launch in self.judged else self.tuning


def find_records(given: Iterable[Path], folder: Path = FOLDER) -> tuple[RecordFile, ...]:
    """Records in the order they are asked: the given files, `./tuning/`, the package's own.

    Raises `UsageError` for a file that is no record.
    """
    paths = [*given]
    for place in (folder, shipped_folder()):
        paths += sorted(place.glob("*.json"))
    return tuple(RecordFile(path, read_record(path)) for path in paths)


def shipped_folder() -> Path:
    """Where the records that come with the package are."""
    return Path(str(resources.files("ssd_aot") / "tuning_records"))


@dataclass(frozen=True)
class Chooser:
    """Chooses by records: a measured winner of the same GPU, kernel source, candidate list and
    compiler comes first, in whatever file; then what can be borrowed, in the order of the files.

    `engine` is the version of the engine whose kernels they are, None where there is none to tell.
    """

    records: tuple[RecordFile, ...]
    toolchain: Toolchain
    sources: tuple[tuple[str, str], ...]
    engine: str | None = None

    def choose(
        self,
        launch: Launch,
        target: Target,
        candidates: Sequence[Configuration],
        *,
        pinned: bool = False,
    ) -> Choice:
        """The choice among a launch's candidates on a target, which are those that a pin leaves
        where the spec pins the kernel."""
        return self.choose_by(launch.identity, launch.kernel, target, candidates, pinned=pinned)

    def choose_by(
        self,
        identity: str,
        kernel: str,
        target: Target,
        candidates: Sequence[Configuration],
        *,
        pinned: bool = False,
    ) -> Choice:
        """As `choose`, by the identity of a launch or of a kernel and its tuning key."""
        first = candidates[0]
        if pinned:
            return Choice(first, Tuning("pinned"))
        borrowed: list[tuple[bool, Choice]] = []
        for file in self.records:
            entry = file.record.entry_of(identity)
            winner = entry.winner if entry else None
            if entry is None or winner is None or winner not in candidates:
                continue
            differences = self._differences(entry, kernel, candidates)
            status = _status(file.record.gpu, target, differences)
            if status == "measured":
                return Choice(winner, _measured(entry), file.path, frozenset(entry.judged))
            if status:
                other_gpu = file.record.gpu != target.name
                borrowed.append((other_gpu, Choice(winner, Tuning(status), file.path)))
        if borrowed:
            return min(borrowed, key=lambda found: found[0])[1]
        return Choice(first, Tuning("default"))

    @staticmethod
    def default(configuration: Configuration) -> Choice:
        """A configuration that is taken because no other fits."""
        return Choice(configuration, Tuning("default"))

    def form_rule(self, target: Target) -> FormRule:
        """The rule of the first record of this GPU, else of its architecture, else the default."""
        files = [f for f in self.records if f.record.forms]
        own = [f for f in files if f.record.gpu == target.name]
        alike = [f for f in files if _same_architecture(f.record.gpu, target)]
        for file in (*own, *alike):
            rule = form_rule(file.record.forms, target.multiprocessors)
            if rule is not None:
                return rule
        return FormRule.for_gpu(target.multiprocessors)

    def _differences(
        self, entry: Entry, kernel: str, candidates: Sequence[Configuration]
    ) -> list[str]:
        """What the entry's measurements stand on that is not so here."""
        here = Session.of(self.toolchain, date="", device="", driver="")
        pairs = (
            ("kernel sources", entry.source, dict(self.sources)[kernel]),
            ("engine version", entry.engine, entry.engine if self.engine is None else self.engine),
            ("candidate list", entry.offered, offered_digest(candidates)),
            ("Triton", entry.session.triton_content, here.triton_content),
            ("ptxas", entry.session.ptxas_version, here.ptxas_version),
            ("environment", entry.session.environment, here.environment),
        )
        return [name for name, found, wanted in pairs if found != wanted]


def _status(gpu: str, wanted: Target, differences: Sequence[str]) -> str:
    """`measured`, what the choice is borrowed from, or nothing for another architecture."""
    if gpu == wanted.name and not differences:
        return "measured"
    if gpu != wanted.name and not _same_architecture(gpu, wanted):
        return ""
    what = f" (other {', '.join(differences)})" if differences else ""
    return f"borrowed from {gpu}{what}"


def refuse_untuned(choices: Sequence[tuple[str, Tuning]]) -> None:
    """Raises `BuildError`, naming them, when some choice is neither measured nor pinned."""
    untuned = [(name, t) for name, t in choices if t.status not in ("measured", "pinned")]
    if untuned:
        raise BuildError(
            f"{len(untuned)} of {len(choices)} choices were not measured on their GPU",
            where="--require-tuned",
            found=listed([f"{name}: {tuning.status}" for name, tuning in untuned]),
            wanted="a measured winner for each launch",
            mend="run `ssd-aot tune` on such a GPU, or build without --require-tuned",
        )


def _measured(entry: Entry) -> Tuning:
    best, default = entry.trial(entry.winner), entry.trial(entry.default)
    return Tuning(
        "measured",
        # An engine's winner was judged in some launches (`Choice.judged`).
        checked=not entry.tuning,
        median_us=round(best.mean_us, 3) if best and best.mean_us else None,
        default_us=round(default.mean_us, 3) if default and default.mean_us else None,
    )


def _same_architecture(name: str, wanted: Target) -> bool:
    try:
        return target(name).arch == wanted.arch
    except SpecError:
        return False
