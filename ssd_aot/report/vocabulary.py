"""Words for what a manifest and a record hold, for readers who have not read the code."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ssd_aot.launches import Configuration, Constant, Launch

PURPOSES: Mapping[str, str] = {
    "scan": "computes the outputs chunk by chunk, each from the state before it",
    "segment_states": "computes the state that each segment of a sequence adds, all side by side",
    "state_passing": "hands states on from segment to segment, and writes the final ones",
    "decay": "computes how fast each token fades, ahead of a scan over whole sequences",
}
"""What each builtin kernel does, those that take most of the time first."""

STATUSES: Mapping[str, str] = {
    "measured": "measured on this GPU model",
    "borrowed": "borrowed from other measurements",
    "pinned": "fixed by the spec",
    "default": "default, never measured",
    "missing": "missing",
}
"""How a configuration came to be taken, the best founded first; `missing` is for no code at all."""

SIGNATURE_STATUSES: Mapping[str, str] = {
    "measured": "every launch was measured on this GPU model",
    "borrowed": "some launches are borrowed from other measurements",
    "pinned": "some launches are fixed by the spec",
    "default": "some launches are defaults that nobody measured; filled is the share that was",
    "missing": "a launch is missing: calls that reach it fail",
}
"""The same, of the least founded launch that a signature needs."""

AXES: tuple[str, ...] = (
    "max_num_batched_tokens", "dtype", "dt_dtype", "param_dtype", "state_dtype", "is_cont_batched",
    "layout", "lengths", "D", "z", "dt_bias", "dt_softplus", "seq_idx", "intermediate_states",
    "has_initstates", "num_seqs",
)  # fmt: skip
"""Fields of a signature that neither the model nor tensor parallelism decides."""

_PARAMETERS: Mapping[str, tuple[str, str]] = {
    "BLOCK_H": ("block", "heads"),
    "BLOCK": ("block", "values"),
    "BLOCK_P": ("block", "columns"),
    "BLOCK_N": ("block", "states"),
    "TAIL_P": ("tail", "columns"),
    "num_warps": ("warps", ""),
    "num_stages": ("stages", ""),
    "PREFETCH": ("pre-", "fetch"),
    "STATE_NP": ("state", "layout"),
    "PDL": ("over-", "lap"),
    "maxnreg": ("register", "cap"),
}
"""Column headings of two lines for a candidate's parameters."""

_VALUES: Mapping[tuple[str, Constant], str] = {
    ("STATE_NP", True): "n × p",
    ("STATE_NP", False): "p × n",
    ("TAIL_P", 0): "–",
}


def status_kind(status: str) -> str:
    """The kind of a manifest's tuning status: `borrowed` for `borrowed from h100`."""
    kind = status.partition(" ")[0]
    return kind if kind in STATUSES else "default"


def plural(count: int, noun: str, many: str = "") -> str:
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def size(count: float) -> str:
    """Bytes as people read them; a kB is 1000 bytes."""
    if count < 1000:
        return plural(int(count), "byte")
    return f"{count / 1000:.1f} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"


def kibibytes(count: int) -> str:
    """Shared memory as GPUs count it."""
    return f"{count / 1024:.0f} KiB" if count % 1024 == 0 else f"{count / 1024:.1f} KiB"


def microseconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def axis_words(axis: str, value: Any) -> str:
    """An axis value of a signature, in a few words."""
    if axis == "num_seqs":
        low, high = value
        return plural(low, "sequence") if low == high else f"{low:,} to {high:,} sequences"
    flags = {
        "has_initstates": ("initial states", "no initial states"),
        "is_cont_batched": ("packed sequences", "batches of equal length"),
        "z": ("gated by z", "no gate z"),
        "dt_bias": ("dt with bias", "dt without bias"),
        "dt_softplus": ("softplus on dt", "no softplus on dt"),
        "seq_idx": ("seq_idx given", "no seq_idx"),
        "intermediate_states": ("states after every chunk", "no states after chunks"),
    }
    if axis in flags:
        return flags[axis][0 if value else 1]
    spelled = {
        "dtype": f"{value} inputs",
        "dt_dtype": f"{value} dt",
        "param_dtype": f"{value} parameters",
        "state_dtype": f"{value} states",
        "max_num_batched_tokens": f"up to {value} tokens a step",
        "layout": "views as engines slice them" if value == "engine" else "unaligned views",
        "lengths": "any lengths" if value == "any" else "lengths in whole chunks",
        "D": {"none": "no D", "head": "D for each head"}.get(value, "D for each column"),
    }
    return spelled.get(axis, f"{axis} {value}")


def launch_words(launch: Launch) -> str:
    """What a launch is for, without what tells its nearest relatives apart."""
    values = dict(launch.constexprs)
    words = []
    if "HEADDIM" in values:
        words.append(f"head dim {values['HEADDIM']}, state dim {values.get('DSTATE', '?')}")
    elif launch.kernel in PURPOSES:
        words.append("every geometry")
    if "SEGMENT" in values:
        segment = values["SEGMENT"]
        words.append(f"segments of {segment} tokens" if segment else "whole sequences")
    if launch.arguments and launch.arguments[0].name in ("x", "dt"):
        first = launch.arguments[0]
        kind = first.type.removeprefix("*")
        words.append(kind if first.name == "x" else f"dt in {kind}")
    if "PACKED" in values and not values["PACKED"]:
        words.append("batches of equal length")
    if values.get("HAS_Z"):
        words.append("gated by z")
    if values.get("D_FORM") in (0, 2):
        words.append("no D" if values["D_FORM"] == 0 else "D for each column")
    return ", ".join(words)


def natural(text: str) -> tuple[tuple[int, str], ...]:
    """A key that sorts the numbers in texts by size: `h1-3b` before `h1-34b`."""
    parts = re.findall(r"\d+|\D+", text)
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in parts)


def relative_words(launch: Launch) -> str:
    """What tells a launch apart from others that `launch_words` says the same of."""
    values = dict(launch.constexprs)
    types = {a.name: a.type.removeprefix("*") for a in launch.arguments}
    words = []
    # In segments the scan starts from states that state_passing made, whatever the call has.
    if "HAS_INITSTATES" in values and not (launch.kernel == "scan" and values.get("SEGMENT")):
        given = values["HAS_INITSTATES"]
        words.append(f"{types.get('initial_states', '')} initial states" if given
                     else "no initial states")  # fmt: skip
    if values.get("HAS_FINAL_STATES"):
        words.append(f"{types.get('final_states', '')} final states")
    if values.get("HAS_CHUNK_STATES"):
        words.append(f"{types.get('chunk_states', '')} states after chunks")
    if values.get("HAS_SEQ_IDX"):
        words.append("seq_idx given")
    if "HAS_DT_BIAS" in values and not values["HAS_DT_BIAS"]:
        words.append("dt without bias")
    if "DT_SOFTPLUS" in values and not values["DT_SOFTPLUS"]:
        words.append("no softplus on dt")
    for name in ("x", "dt", "states"):
        unaligned = [a for a in launch.arguments[:1] if a.name == name]
        if name != "dt" and unaligned and unaligned[0].specialisation == "unaligned":
            words.append("unaligned")
    return ", ".join(words)


def heading(parameter: str) -> tuple[str, str]:
    """A column heading of two lines for a candidate's parameter."""
    return _PARAMETERS.get(parameter, (parameter, ""))


def parameter_words(parameter: str, value: Constant) -> str:
    if (parameter, value) in _VALUES:
        return _VALUES[parameter, value]
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else str(value)


def telling(configurations: Sequence[Configuration]) -> tuple[str, ...]:
    """The parameters in which configurations differ; STAGES says what num_stages does."""
    forms = [configuration.to_json() for configuration in configurations]
    names = list(dict.fromkeys(name for form in forms for name in form))
    same = all(form.get("STAGES", form["num_stages"]) == form["num_stages"] for form in forms)
    differing = [n for n in names if len({repr(form.get(n)) for form in forms}) > 1]
    return tuple(n for n in differing if not (same and n == "STAGES"))


def compact_words(configuration: Configuration, parameters: Sequence[str]) -> str:
    """A candidate's telling parameters on one line."""
    values = configuration.to_json()
    return " · ".join(_phrase(name, values.get(name)) for name in parameters)


def _phrase(parameter: str, value: Constant) -> str:
    first, second = heading(parameter)
    if parameter == "STATE_NP":
        return parameter_words(parameter, value)
    if parameter == "TAIL_P":
        return f"tail {value}" if value else "no tail"
    if isinstance(value, bool):
        name = first.removesuffix("-") + second
        return name if value else f"no {name}"
    noun = second if first == "block" else f"{first} {second}".rstrip()
    return f"{parameter_words(parameter, value)} {noun[:-1] if value == 1 else noun}"
