"""An engine's own operation on a GPU: its tuners' choices forced, its memory poisoned, timed by
graph replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from ssd_aot.engines.engine import engine
from ssd_aot.engines.groups import TuningGroup
from ssd_aot.engines.serving_calls import ServingBatch
from ssd_aot.launches import Configuration
from ssd_aot.problems import Problem, Results
from ssd_aot.targets import Target
from ssd_aot.triton_compat.forcing import force_choice, refusing_to_tune
from ssd_aot.tuning.device_measuring import check_device, is_usable
from ssd_aot.tuning.poison import PoisonedMemory
from ssd_aot.tuning.replaying import launched_us, replayed_us, rounds_for, warm


class EngineDevice:
    """The GPU of an index, which must be `target`, with an engine imported for it until `close`.

    For a process of its own. Kernels come out of the bundle at `candidates`, and out of Triton's
    own cache and compiler where there is none. Raises `HostError` for another GPU or none, and for
    an engine that cannot be imported; `MismatchError` for a bundle of another toolchain.
    """

    def __init__(
        self, name: str, target: Target, index: int = 0, candidates: Path | None = None
    ) -> None:
        self.name = check_device(target, index).name
        self.device = torch.device("cuda", index)
        torch.cuda.set_device(self.device)
        torch.zeros(1, device=self.device)
        if candidates is not None:
            from ssd_aot.bundle.store import Bundle
            from ssd_aot.runtime.engine_loading import load_engine

            load_engine(Bundle.open(candidates))
        source = engine(name)
        self._engine = source
        self._open = ExitStack()
        self._open.enter_context(source.imported(target))
        self._open.enter_context(refusing_to_tune())
        self._captured: bool | None = None

    def close(self) -> None:
        self._open.close()

    def choose(self, choices: Mapping[TuningGroup, Configuration]) -> None:
        for group, configuration in choices.items():
            captured = group.launches[0].captured
            assert captured.tuning is not None
            spelled = next(
                candidate.spelled
                for candidate in captured.candidates
                if candidate.configuration == configuration
            )
            force_choice(group.kernel, captured.tuning.tuning_key, spelled)

    def results(self, batch: ServingBatch, problem: Problem) -> Results:
        prepared = self._engine.prepare(batch, problem)
        with PoisonedMemory():  # type: ignore[no-untyped-call]
            return prepared.results()

    def median_us(self, batch: ServingBatch, problems: Sequence[Problem]) -> float:
        calls = [self._engine.prepare(batch, problem).run for problem in problems]
        rounds = rounds_for(sum(batch.lengths), batch.signature.nheads)
        # What a candidate raises, it raises here, and no capture is to blame.
        warm(calls, self.device)
        if self._captured is not False:
            try:
                found = replayed_us(calls, rounds, self.device)
                self._captured = True
                return found
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:
                # Launch code that waits for the device cannot be captured, whatever the candidate.
                if self._captured:
                    raise
                self._captured = False
        return launched_us(calls, rounds, self.device)

    def usable(self) -> bool:
        return is_usable(self.device)
