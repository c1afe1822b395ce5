"""Launches and candidates in words: what each is for, and what tells it from its relatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ssd_aot.launches import Configuration, Constant, Launch

PURPOSES: Mapping[str, str] = {
    "scan": "computes the outputs chunk by chunk, each from the state before it",
    "segment_states": "computes the state that each segment of a sequence adds, all side by side",
    "state_passing": "hands states on from segment to segment, and writes the final ones",
    "decay": "computes how fast each token fades, ahead of a scan over whole sequences",
}
"""What each builtin kernel does, those that take most of the time first."""

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
    "BY_HAND": ("by", "hand"),
    "BUFFERS": ("buffers", ""),
    "maxnreg": ("register", "cap"),
}
"""Column headings of two lines for a candidate's parameters."""

_VALUES: Mapping[tuple[str, Constant], str] = {
    ("STATE_NP", True): "n × p",
    ("STATE_NP", False): "p × n",
    ("TAIL_P", 0): "–",
}


def short_name(kernel: str) -> str:
    """An engine's kernels are named `module:function`; the function says enough."""
    return kernel.rpartition(":")[2]


def launch_words(launch: Launch) -> str:
    """What a launch is for, without what tells its nearest relatives apart."""
    values = dict(launch.constexprs)
    if launch.kernel not in PURPOSES:
        sizes = [f"{name} {value}" for name, value in values.items() if _is_size(name, value)]
        return ", ".join(sizes)
    words = ["every geometry"]
    if "HEADDIM" in values:
        words = [f"head dim {values['HEADDIM']}, state dim {values['DSTATE']}"]
    if "SEGMENT" in values:
        segment = values["SEGMENT"]
        words.append(f"segments of {segment} tokens" if segment else "whole sequences")
    types = _types(launch)
    if "x" in types:
        words.append(types["x"])
    elif "dt" in types:
        words.append(f"dt in {types['dt']}")
    if not values.get("PACKED", True):
        words.append("batches of equal length")
    if values.get("HAS_Z"):
        words.append("gated by z")
    if values.get("D_FORM") in (0, 2):
        words.append("no D" if values["D_FORM"] == 0 else "D for each column")
    return ", ".join(words)


def relative_words(launch: Launch) -> str:
    """What tells a builtin launch apart from others that `launch_words` says the same of."""
    if launch.kernel not in PURPOSES:
        return ""
    values, types = dict(launch.constexprs), _types(launch)
    words = []
    # In segments the scan starts from states that state_passing made, whatever the call has.
    if "HAS_INITSTATES" in values and not (launch.kernel == "scan" and values.get("SEGMENT")):
        given = values["HAS_INITSTATES"]
        words.append(f"{types['initial_states']} initial states" if given else "no initial states")
    if values.get("HAS_FINAL_STATES"):
        words.append(f"{types['final_states']} final states")
    if values.get("HAS_CHUNK_STATES"):
        words.append(f"{types['chunk_states']} states after chunks")
    if values.get("HAS_SEQ_IDX"):
        words.append("seq_idx given")
    if not values.get("HAS_DT_BIAS", True):
        words.append("dt without bias")
    if not values.get("DT_SOFTPLUS", True):
        words.append("no softplus on dt")
    if any(a.name == "x" and a.specialisation == "unaligned" for a in launch.arguments):
        words.append("unaligned")
    return ", ".join(words)


def differences(launch: Launch, others: Sequence[Launch]) -> str:
    """In which constexprs and argument classes a launch differs from some of `others`."""
    values = _parts(launch)
    differing = {
        name
        for other in map(_parts, others)
        for name in values.keys() | other.keys()
        if values.get(name) != other.get(name)
    }
    return ", ".join(f"{name} {values.get(name, 'absent')}" for name in sorted(differing))


def _parts(launch: Launch) -> dict[str, str]:
    parts = {name: str(value) for name, value in (*launch.constexprs, *launch.options)}
    return parts | {argument.name: argument.spelled() for argument in launch.arguments}


def _types(launch: Launch) -> dict[str, str]:
    return {a.name: a.type.removeprefix("*") for a in launch.arguments if a.type != "none"}


def _is_size(name: str, value: Constant) -> bool:
    return type(value) is int and not name.startswith(("stride", "BLOCK"))


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
    told = [(name, values.get(name)) for name in parameters]
    # Kernels written another way lack some of the parameters.
    return " · ".join(_phrase(name, value) for name, value in told if value is not None)


def _phrase(parameter: str, value: Constant) -> str:
    first, second = heading(parameter)
    if parameter == "BY_HAND":
        return "by hand"
    if parameter == "STATE_NP":
        return parameter_words(parameter, value)
    if parameter == "TAIL_P":
        return f"tail {value}" if value else "no tail"
    if isinstance(value, bool):
        name = first.removesuffix("-") + second
        return name if value else f"no {name}"
    noun = second if first == "block" else f"{first} {second}".rstrip()
    return f"{parameter_words(parameter, value)} {noun[:-1] if value == 1 else noun}"
