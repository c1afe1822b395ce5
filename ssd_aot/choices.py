"""A configuration out of tuning records: measured, borrowed and said so, or the default."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from ssd_aot.bundle.manifest import Toolchain, Tuning
from ssd_aot.errors import BuildError, SpecError
from ssd_aot.launches import Configuration
from ssd_aot.plan import PlannedLaunch
from ssd_aot.record_text import read_record
from ssd_aot.records import Entry, Record, Session, offered_digest
from ssd_aot.targets import Target, target

FOLDER = Path("tuning")
"""Where a project keeps its own records, and where `build` writes what it measures."""


@dataclass(frozen=True)
class RecordFile:
    """A record and where it was read, for messages."""

    path: Path
    record: Record


@dataclass(frozen=True)
class Choice:
    """A configuration with what the manifest says of it, and the record it comes from, if any."""

    configuration: Configuration
    tuning: Tuning
    origin: Path | None = None


def find_records(given: Iterable[Path], folder: Path = FOLDER) -> tuple[RecordFile, ...]:
    """Records in the order they are asked: the given files, `./tuning/`, the package's own.

    Raises `UsageError` for a file that is no record.
    """
    shipped = Path(str(resources.files("ssd_aot") / "tuning_records"))
    paths = [*given]
    for place in (folder, shipped):
        paths += sorted(place.glob("*.json"))
    return tuple(RecordFile(path, read_record(path)) for path in paths)


@dataclass(frozen=True)
class Chooser:
    """Chooses by records: a measured winner of the same GPU, kernel source, candidate list and
    compiler comes first, in whatever file; then what can be borrowed, in the order of the files."""

    records: tuple[RecordFile, ...]
    toolchain: Toolchain
    sources: tuple[tuple[str, str], ...]

    def choose(self, planned: PlannedLaunch, *, pinned: bool = False) -> Choice:
        """The choice for a launch; one whose kernel the spec pins takes the pin's first."""
        first = planned.candidates[0]
        if pinned:
            return Choice(first, Tuning("pinned"))
        borrowed: list[tuple[bool, Choice]] = []
        for file in self.records:
            entry = file.record.entry(planned.launch)
            if entry is None or entry.winner not in planned.candidates:
                continue
            status = self._status(file.record, entry, planned)
            if status == "measured":
                return Choice(entry.winner, _measured(entry), file.path)
            if status:
                other_gpu = file.record.gpu != planned.target.name
                borrowed.append((other_gpu, Choice(entry.winner, Tuning(status), file.path)))
        if borrowed:
            return min(borrowed, key=lambda found: found[0])[1]
        return Choice(first, Tuning("default"))

    def _status(self, record: Record, entry: Entry, planned: PlannedLaunch) -> str:
        """`measured`, what the choice is borrowed from, or nothing for another architecture."""
        other_gpu = record.gpu != planned.target.name
        if other_gpu and not _same_architecture(record.gpu, planned.target):
            return ""
        differences = self.differences(entry, planned)
        if not other_gpu and not differences:
            return "measured"
        return f"borrowed from {record.gpu}" + (
            f" (other {', '.join(differences)})" if differences else ""
        )

    def differences(self, entry: Entry, planned: PlannedLaunch) -> list[str]:
        """What the entry's measurements stand on that is not so here."""
        here = Session.of(self.toolchain, date="", device="", driver="")
        pairs = (
            ("kernel sources", entry.source, dict(self.sources)[planned.launch.kernel]),
            ("candidate list", entry.offered, offered_digest(planned.candidates)),
            ("Triton", entry.session.triton_content, here.triton_content),
            ("ptxas", entry.session.ptxas_version, here.ptxas_version),
            ("environment", entry.session.environment, here.environment),
        )
        return [name for name, found, wanted in pairs if found != wanted]


def refuse_untuned(choices: Sequence[tuple[PlannedLaunch, Tuning]]) -> None:
    """Raises `BuildError`, naming them, when some choice is neither measured nor pinned."""
    untuned = [(p, t) for p, t in choices if t.status not in ("measured", "pinned")]
    if untuned:
        named = "\n".join(f"{planned}: {tuning.status}" for planned, tuning in untuned)
        raise BuildError(
            f"{len(untuned)} of {len(choices)} choices were not measured on their GPU",
            where="--require-tuned",
            found=named,
            wanted="a measured winner for each launch",
            mend="run `ssd-aot tune` on such a GPU, or build without --require-tuned",
        )


def _measured(entry: Entry) -> Tuning:
    best, default = entry.trial(entry.winner), entry.trial(entry.default)
    return Tuning(
        "measured",
        checked=True,
        median_us=round(best.mean_us, 3) if best and best.mean_us else None,
        default_us=round(default.mean_us, 3) if default and default.mean_us else None,
    )


def _same_architecture(name: str, wanted: Target) -> bool:
    try:
        return target(name).arch == wanted.arch
    except SpecError:
        return False
