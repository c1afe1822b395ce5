"""The fixture as an engine whose calls are those that a test asks for."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from signature_builders import signature

from ssd_aot.engines.engine import Call
from ssd_aot.engines.operation_modules import operation_module
from ssd_aot.engines.tracing import trace_engine
from ssd_aot.signatures import Signature
from ssd_aot.targets import Target, target
from ssd_aot.triton_compat import CapturedLaunch

Calls = Callable[[Any], object]
"""Runs launch code of the fixture's operation module."""


class FixtureEngine:
    name = "fixture"
    package = "fixture_engine"

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._operation: Any = None

    @contextmanager
    def imported(self, target: Target) -> Iterator[None]:
        name = f"{self.package}.operation"
        self._operation = operation_module(name)
        yield
        del sys.modules[name]

    def refusal(self, signature: Signature) -> str:
        return "the fixture makes batches alone" if signature.is_cont_batched else ""

    def calls(self, signature: Signature) -> Iterator[Call]:
        yield lambda: self._calls(self._operation)


def launched(monkeypatch: pytest.MonkeyPatch, calls: Calls) -> list[CapturedLaunch]:
    """What the calls launch on an H200, through the frame that traces an engine."""
    monkeypatch.setattr("ssd_aot.engines.tracing.engine", lambda name: FixtureEngine(calls))
    traced = trace_engine("fixture", target("h200"), [signature(is_cont_batched=False)])
    return [found.captured for found in traced]
