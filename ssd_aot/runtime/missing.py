"""What to say when a loaded bundle lacks a launch: which one, and the spec that would cover it."""

from __future__ import annotations

from collections.abc import Iterable

from ssd_aot.bundle.manifest import Manifest
from ssd_aot.errors import MissingLaunchError
from ssd_aot.launches import Launch
from ssd_aot.layouts import ScanLayout

D_FORMS = ("none", "head", "headdim")


def covering_spec(layout: ScanLayout) -> str:
    """The axes of a spec under which the layout's launches are planned, as one YAML line each."""
    types = dict(layout.types)
    states = types.get("final_states", types.get("initial_states", types.get("chunk_states")))
    axes = {
        "dtype": types["x"],
        "dt_dtype": types["dt"],
        "param_dtype": types.get("D", types.get("dt_bias", types["x"])),
        "state_dtype": states or "fp32",
        "HAS_INITSTATES": layout.has("initial_states"),
        "IS_CONT_BATCHED": layout.packed,
        "D": D_FORMS[layout.d_form],
        "z": layout.has("z"),
        "dt_bias": layout.has("dt_bias"),
        "dt_softplus": layout.dt_softplus,
        "seq_idx": layout.has("seq_idx"),
        "intermediate_states": layout.chunk_states,
        "layout": "engine" if layout.aligned else "unaligned",
    }
    written = ", ".join(f"{name}: [{str(value).lower() if isinstance(value, bool) else value}]"
                        for name, value in axes.items())  # fmt: skip
    return (
        f"a model with headdim: {layout.headdim}, dstate: {layout.dstate}, "
        f"nheads: {layout.nheads}, ngroups: {layout.ngroups} (per rank) under matrix: {{{written}}}"
    )


def missing_launch(
    manifest: Manifest, target: str, layout: ScanLayout, launch: Launch
) -> MissingLaunchError:
    """The error for a launch that the bundle lacks, with the nearest launch it has."""
    have = (entry.launch for entry in manifest.variants if entry.target == target)
    return MissingLaunchError(
        "the loaded bundle has no such launch",
        where=f"{launch.kernel} on {target}",
        found=nearest_difference(have, launch),
        wanted=str(launch),
        mend=f"rebuild with a spec that covers it: {covering_spec(layout)}",
    )


def nearest_difference(have: Iterable[Launch], launch: Launch) -> str:
    """What tells the nearest of some launches from one that is not among them."""
    wanted = _components(launch)
    alike = [_components(found) for found in have if found.kernel == launch.kernel]
    if not alike:
        return f"no variant of {launch.kernel}"
    nearest = min(alike, key=lambda parts: len(set(parts.items()) ^ set(wanted.items())))
    parts = [
        f"{name}={nearest[name]} (wanted {value})"
        for name, value in wanted.items()
        if nearest[name] != value
    ]
    return "the nearest differs in " + ", ".join(parts)


def _components(launch: Launch) -> dict[str, str]:
    parts = {name: str(value) for name, value in launch.constexprs}
    return parts | {argument.name: argument.spelled() for argument in launch.arguments}
