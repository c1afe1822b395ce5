"""What a spec's pins leave of a kernel's candidates, and whether each names a kernel."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ssd_aot.documents import nearest
from ssd_aot.errors import SpecError
from ssd_aot.launches import Configuration
from ssd_aot.spec import Spec


def pinned_candidates(
    spec: Spec, name: str, every: Sequence[Configuration]
) -> tuple[Configuration, ...]:
    """The candidates that the pin of that name leaves, all where there is none. Raises SpecError
    for a pin that leaves none."""
    pin = spec.pinned(name)
    parameters = list(dict.fromkeys(option for c in every for option in c.to_json()))
    for option in pin:
        if option not in parameters:
            raise SpecError(
                "no candidate has this parameter",
                where=spec.place(f"pin.{name}"),
                found=option,
                wanted=", ".join(parameters),
                mend=nearest(option, parameters) or "pin one of these, or drop the pin",
            )
    left = tuple(c for c in every if all(c.to_json().get(k) == v for k, v in pin.items()))
    if not left:
        raise SpecError(
            "the pin matches no candidate",
            where=spec.place(f"pin.{name}"),
            found=", ".join(f"{option}={value}" for option, value in pin.items()),
            wanted="one of: " + "; ".join(str(c) for c in every),
            mend="pin values that one candidate has, or drop the pin",
        )
    return left


def check_pins(spec: Spec, names: Collection[str], others: Collection[str] = ()) -> None:
    """Raises SpecError for a pin that is none of the kernels' `names` and of what `others` a kernel
    may be called."""
    for kernel, _ in spec.pin:
        if kernel not in names and kernel not in others:
            raise SpecError(
                "the pin names no kernel of the plan",
                where=spec.place(f"pin.{kernel}"),
                found=kernel,
                wanted=", ".join(sorted(names)),
                mend="name one of these kernels",
            )
