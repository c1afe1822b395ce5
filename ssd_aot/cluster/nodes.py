"""Which nodes of a cluster may work: those that have what this host has, by content."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import ssd_aot
from ssd_aot.cluster.link import ClusterLost, Link, Node

PROBE_LIMIT_S = 120.0
"""For a node to start a process, import Triton and read its files."""

_LAYOUT = "ptxas without address randomisation"


@dataclass(frozen=True)
class Refusal:
    """A node that gets no work, and why."""

    node: Node
    reason: str

    def __str__(self) -> str:
        return f"{self.node} gets no work: {self.reason}"


def package_identity() -> dict[str, str]:
    """This package on this host: what is pickled here must mean the same there."""
    total = hashlib.sha256()
    root = Path(ssd_aot.__file__).parent
    for path in sorted(root.rglob("*.py")):
        total.update(f"{path.relative_to(root).as_posix()}\0".encode())
        total.update(hashlib.sha256(path.read_bytes()).digest())
    return {"ssd_aot": f"{ssd_aot.__version__}, sha256 {total.hexdigest()[:16]}"}


def compiler_identity() -> dict[str, str]:
    """All that decides what a kernel becomes on this host; the version string, which the content
    of the files stands for, does not."""
    from ssd_aot.compilation.threads import environment_of_the_user
    from ssd_aot.triton_compat import layout_can_be_fixed, toolchain

    with environment_of_the_user():
        identity = {name: str(value) for name, value in asdict(toolchain()).items()}
    del identity["triton_version"]
    return package_identity() | identity | {_LAYOUT: "yes" if layout_can_be_fixed() else "no"}


def admit(
    link: Link, nodes: Sequence[Node], identity: Callable[[], dict[str, str]]
) -> tuple[list[Node], list[Refusal]]:
    """The nodes whose identity is this host's, and the others with the first difference."""
    wanted = identity()
    with ThreadPoolExecutor(max(1, len(nodes))) as threads:
        reasons = threads.map(lambda node: _reason(link, node, identity, wanted), nodes)
        judged = list(zip(nodes, reasons, strict=True))
    return (
        [node for node, reason in judged if not reason],
        [Refusal(node, reason) for node, reason in judged if reason],
    )


def _reason(
    link: Link, node: Node, identity: Callable[[], dict[str, str]], wanted: dict[str, str]
) -> str:
    # Without a CPU of its own, so that a busy node answers too.
    worker = link.open(node)
    try:
        found = worker.call(identity, limit_s=PROBE_LIMIT_S)
    except ClusterLost:
        raise
    except Exception as error:
        # Whatever keeps it from answering: another release may lack the function itself.
        return " ".join(f"{type(error).__name__}: {error}".split())
    finally:
        worker.close()
    assert isinstance(found, dict)
    for name, value in wanted.items():
        other = str(found.get(name))
        better = name == _LAYOUT and value == "no"
        if other != value and not better:
            return f"another {name}: found {other}, wanted {value}"
    return ""
