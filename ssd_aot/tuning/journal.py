"""Measurements on disk the moment they are made: a killed run loses the one it was in.

`FILE.journal` lies beside the record it will become part of, one trial a line, each naming the
basis it stands on. A line that a kill cut short is passed over.
"""

from __future__ import annotations

import hashlib
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

from ssd_aot.bundle.json_readers import Misfit, parse_json
from ssd_aot.launches import Configuration, canonical_json
from ssd_aot.tuning.record_text import read_trial, trial_line
from ssd_aot.tuning.records import Basis, Record, Trial
from ssd_aot.writing import write_error


class Journal:
    """The trials known so far, by basis: those of an earlier record, of a killed run, and new ones.

    Several stations may share it. Raises `HostError` where it cannot be written.
    """

    def __init__(self, record_path: Path, record: Record | None = None) -> None:
        self.path = record_path.with_name(record_path.name + ".journal")
        self._trials: dict[str, dict[Configuration, Trial]] = {}
        self._lock = threading.Lock()
        for entry in record.entries if record else ():
            known = self._known(_place(entry.basis, entry.workloads))
            known.update((t.configuration, t) for t in entry.trials)
        self._read()
        self._file: IO[str] | None = None

    def trials(self, basis: Basis, workloads: tuple[str, ...]) -> dict[Configuration, Trial]:
        """What is known on a basis, for these workloads, by configuration."""
        with self._lock:
            return dict(self._known(_place(basis, workloads)))

    def add(self, basis: Basis, workloads: tuple[str, ...], trial: Trial) -> None:
        """Keep a trial; a second one of the same configuration replaces the first."""
        place = _place(basis, workloads)
        line = f'{{"basis": "{place}", "trial": {trial_line(trial)}}}\n'
        with self._lock:
            try:
                self._append(line)
            except OSError as error:
                raise write_error(error, self.path, len(line)) from error
            self._known(place)[trial.configuration] = trial

    def _append(self, line: str) -> None:
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a", encoding="utf-8")
            # Whatever a kill left of its last line ends here.
            self._file.write("\n")
        self._file.write(line)
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def discard(self) -> None:
        """Remove the file, once the record holds what was in it."""
        self.close()
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def _known(self, place: str) -> dict[Configuration, Trial]:
        return self._trials.setdefault(place, {})

    def _read(self) -> None:
        try:
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return
        for line in lines:
            with suppress(ValueError, KeyError, TypeError, Misfit):
                data = parse_json(line)
                trial = read_trial(data["trial"])
                self._known(str(data["basis"]))[trial.configuration] = trial


def _place(basis: Basis, workloads: tuple[str, ...]) -> str:
    """Times for other workloads cannot be compared: they stand apart."""
    return hashlib.sha256(canonical_json([basis.id, workloads]).encode()).hexdigest()
