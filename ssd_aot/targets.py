"""GPU names, architectures and the limits that a build needs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A GPU model by its common name.

    `shared_bytes_optin` is the opt-in shared memory a block may use, in bytes; `multiprocessors`
    the count that the choice of a kernel form is derived from.
    """

    name: str
    arch: str
    capability: tuple[int, int]
    shared_bytes_optin: int
    multiprocessors: int
