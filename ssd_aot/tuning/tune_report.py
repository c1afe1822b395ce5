"""What a run of the tuner did, as JSON and for a terminal."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ssd_aot.launches import Configuration, Launch
from ssd_aot.layouts import FormRule
from ssd_aot.tables import WIDTH, cut, table
from ssd_aot.tuning.records import Entry, geometric_mean

_HEADER = ("kernel", "us", "default", "gain", "rejected", "spills")


@dataclass(frozen=True)
class TuneReport:
    """What a run of the tuner did: `fresh` trials ran now, `reused` were known; `left` names the
    launches that the budget did not reach (empty: all are settled). Engines' entries, of which each
    is for several launches, are `tuned` without one."""

    path: Path
    tuned: tuple[tuple[Launch | None, Entry], ...]
    form_rule: FormRule | None
    fresh: int
    reused: int
    elapsed_s: float
    left: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "path": str(self.path),
            "launches": [_form(entry) for _, entry in self.tuned],
            "form_rule": asdict(self.form_rule) if self.form_rule else None,
            "fresh": self.fresh,
            "reused": self.reused,
            "elapsed_s": round(self.elapsed_s, 2),
            "left": list(self.left),
        }

    def __str__(self) -> str:
        lines = table([_HEADER, *(_row(launch, entry) for launch, entry in self.tuned)])
        for launch, entry in self.tuned:
            if entry.winner != entry.default:
                lines.append(f"{_label(launch, entry)}, not the default but:")
                winner = str(entry.winner) if entry.winner else "nothing, for none was right"
                lines += [f"  {line}" for line in cut(winner, WIDTH - 2)]
        return "\n".join([*lines, *self._closing()])

    def _closing(self) -> list[str]:
        gains = [gain for gain in (_gain(entry) for _, entry in self.tuned) if gain is not None]
        lines = []
        if gains:
            lines.append(f"tuned over default: {geometric_mean(gains):.3f} times as fast (mean)")
        if self.form_rule is not None:
            rule = self.form_rule
            lines.append(
                f"forms: walk from {rule.walk_programs} programs or up to {rule.walk_tokens} tokens"
            )
        lines.append(
            f"{self.path}: {len(self.tuned)} launches settled, {self.fresh} trials measured, "
            f"{self.reused} known before, in {self.elapsed_s:.0f} s"
        )
        if self.left:
            lines.append(f"left by the budget: {len(self.left)} launches; run again to go on")
        return lines


def _form(entry: Entry) -> dict[str, Any]:
    def configuration(chosen: Configuration | None) -> dict[str, Any] | None:
        return chosen.to_json() if chosen else None

    best, default = entry.trial(entry.winner), entry.trial(entry.default)
    return {
        "kernel": entry.kernel,
        "launch": entry.identity,
        "winner": configuration(entry.winner),
        "winner_us": best.mean_us if best else None,
        "default": configuration(entry.default),
        "default_us": default.mean_us if default else None,
        "gain": _gain(entry),
        "trials": len(entry.trials),
        "rejected": sum(1 for trial in entry.trials if trial.rejected),
    }


def _row(launch: Launch | None, entry: Entry) -> tuple[str, ...]:
    best, default = entry.trial(entry.winner), entry.trial(entry.default)
    gain = _gain(entry)
    rejected = sum(1 for trial in entry.trials if trial.rejected)
    spills = max((trial.spill_bytes or 0 for trial in entry.trials), default=0)
    return (
        _label(launch, entry),
        f"{best.mean_us:.1f}" if best and best.mean_us else "-",
        f"{default.mean_us:.1f}" if default and default.mean_us else "-",
        f"{gain:.3f}" if gain else "-",
        f"{rejected}/{len(entry.trials)}",
        f"to {spills} B" if spills else "-",
    )


def _gain(entry: Entry) -> float | None:
    """How many times as fast as the default the winner is."""
    best, default = entry.trial(entry.winner), entry.trial(entry.default)
    if not best or not default or not best.mean_us or not default.mean_us:
        return None
    return default.mean_us / best.mean_us


def _label(launch: Launch | None, entry: Entry) -> str:
    """What tells a kernel's launches apart, short."""
    if launch is None:
        return _tuning_label(entry)
    values = dict(launch.constexprs)
    parts = [launch.kernel]
    if "HEADDIM" in values:
        parts.append(f"{values['HEADDIM']}x{values['DSTATE']}")
    if launch.kernel == "scan":
        parts.append("segments" if values["SEGMENT"] else "walk")
    if values.get("SEGMENT"):
        parts.append(str(values["SEGMENT"]))
    if values.get("HAS_INITSTATES") and not (launch.kernel == "scan" and values["SEGMENT"]):
        parts.append("init")
    types = {a.name: a.type for a in launch.arguments}
    parts += [types[name][1:] for name in ("final_states",) if types.get(name, "none") != "none"]
    return " ".join(parts)


_SHORT = {"torch.float": "fp", "torch.bfloat": "bf", "torch.int": "i"}


def _tuning_label(entry: Entry) -> str:
    """An engine's kernel with the values and the dtypes of its tuning key."""
    parts = [entry.kernel.rpartition(":")[2], *map(str, json.loads(entry.tuning))]
    label = " ".join(parts)
    for long, short in _SHORT.items():
        label = label.replace(long, short)
    return label
