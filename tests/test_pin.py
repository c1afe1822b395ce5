"""The pin: exactly this bundle or none, wherever a bundle is taken up."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import ssd_aot

from ssd_aot.bundle.pin import VARIABLE, pinned_digest, refuse_other
from ssd_aot.bundle.store import Bundle
from ssd_aot.errors import HostError, MismatchError, UsageError
from ssd_aot.runtime import loading

ONE, OTHER = "1" * 64, "2" * 64


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """`load` asks for the GPU after everything that it can refuse without one."""

    def lacking() -> int:
        raise HostError("no GPU here")

    monkeypatch.setattr(loading, "_current_device", lacking)
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.mark.parametrize(
    ("given", "variable", "pinned"),
    [(None, None, None), (ONE, None, ONE), (None, ONE, ONE), (ONE, ONE, ONE)],
)
def test_the_pin_is_what_was_given_or_the_environments(
    given: str | None, variable: str | None, pinned: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable is not None:
        monkeypatch.setenv(VARIABLE, variable)

    assert pinned_digest(given, "here") == pinned


def test_two_different_pins_are_refused_with_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, OTHER)

    with pytest.raises(UsageError) as caught:
        pinned_digest(ONE, "here")

    assert (caught.value.where, caught.value.found) == ("here", ONE)
    assert OTHER in caught.value.wanted
    assert VARIABLE in caught.value.mend


@pytest.mark.parametrize(
    "text", ["", " ", "1" * 63, "1" * 65, "A" * 64, f"sha256:{ONE}", ONE + "\n"]
)
@pytest.mark.parametrize("place", ["here", VARIABLE])
def test_what_is_no_digest_pins_nothing_in_silence(
    text: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place == VARIABLE:
        monkeypatch.setenv(VARIABLE, text)

    with pytest.raises(UsageError) as caught:
        pinned_digest(text if place == "here" else None, "here")

    assert (caught.value.where, caught.value.found) == (place, repr(text))


def test_another_bundle_is_refused_with_both_digests() -> None:
    with pytest.raises(MismatchError) as caught:
        refuse_other(ONE, OTHER, "dist/h200")

    assert (caught.value.found, caught.value.wanted) == (ONE, OTHER)
    refuse_other(ONE, ONE, "dist/h200")
    refuse_other(ONE, None, "dist/h200")


def test_load_takes_the_pinned_bundle_alone(
    three_targets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = Bundle.open(three_targets).digest

    with pytest.raises(HostError):
        loading.load(three_targets, digest=digest)
    with pytest.raises(MismatchError):
        loading.load(three_targets, digest=OTHER)

    monkeypatch.setenv(VARIABLE, digest)
    with pytest.raises(HostError):
        loading.load(three_targets)
    with pytest.raises(UsageError):
        loading.load(three_targets, digest=OTHER)

    monkeypatch.setenv(VARIABLE, OTHER)
    with pytest.raises(MismatchError):
        loading.load(three_targets)


@pytest.mark.parametrize(
    ("given", "variable", "code"),
    [
        ("its own", None, 0),
        (OTHER, None, 1),
        (None, "its own", 0),
        (None, OTHER, 1),
        ("its own", "its own", 0),
        ("its own", OTHER, 2),
        (None, "", 2),
        ("latest", None, 2),
    ],
)
def test_verify_takes_the_pinned_bundle_alone(
    given: str | None,
    variable: str | None,
    code: int,
    three_targets: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = Bundle.open(three_targets).digest
    if variable is not None:
        monkeypatch.setenv(VARIABLE, variable.replace("its own", own))
    pin = [] if given is None else ["--digest", given.replace("its own", own)]

    result = ssd_aot("verify", three_targets, *pin)

    assert result.exit_code == code, result.output
    if code == 0:
        assert "digest: as given" in result.stdout
