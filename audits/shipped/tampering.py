"""What a lying coordinator can make parties accept: every trick by name, and who noticed it.

Each of `tricks.TRICKS` is played on a small federation of the installed program, protected as the
run is, and again where what stops it is taken away: without protection; with links that do not
count frames; with keys that are taken on trust. There it must work, or it is no trick.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from secure_fl.audits.base import Finding, Prior
from secure_fl.audits.gate import Trial
from secure_fl.audits.shipped.keys_on_trust import OnTrust, input_read
from secure_fl.audits.shipped.lying import Trick
from secure_fl.audits.shipped.small_federation import Outcome, Setting, play
from secure_fl.audits.shipped.tricks import TRICKS
from secure_fl.coordinator.totals import MASKED
from secure_fl.crypto.step_keys import StepKeys
from secure_fl.protocol.link import Link
from secure_fl.settings import Protection

NAME = "tampering"
ABOUT = (
    "Plays a coordinator that changes sums, leaves hospitals out, swaps keys and tells lies; "
    "success would mean that hospitals accept what it made of their results."
)
ROLE = "coordinator"
KEYS, FRAME = "swaps keys", "replays a frame"


@dataclass(slots=True)
class Uncounted(Link):
    """Planted: an end of the wire that takes frames in any order, and again."""

    def _expect(self, field: str, holds: bool) -> None:
        Link._expect(self, field, holds or field == "exchange")


def tampering_trials(
    prior: Prior | None = None,
    quick: bool = False,
    mode: Protection = "he+secagg",
) -> tuple[Trial, ...]:
    """Play every trick; pass the run's own mode.

    Nothing of it depends on the prior, and all of it is quick.
    """
    bare, deployed = Setting.of("none"), Setting.of(mode)
    uncounted = Setting("none", bare.keys, Uncounted)
    honest = play(deployed, Trick())
    null = float(not honest.clean)
    trials = []
    for name in TRICKS:
        nothing = _finding(name, null, honest, deployed)
        if name == KEYS:
            trials.append(_keys(deployed, nothing))
            continue
        control = played(name, uncounted if name == FRAME else bare)
        trials.append(Trial(control, played(name, deployed), nothing))
    return tuple(trials)


def played(name: str, setting: Setting) -> Finding:
    """Play one trick on a small federation, and see whether any party took a wrong result."""
    out = play(setting, TRICKS[name](setting.mode))
    return _finding(name, float(out.accepted or not out.noticed), out, setting)


def _keys(deployed: Setting, null: Finding) -> Trial:
    """Swapped keys change no result: what they win is the victim's input."""
    if deployed.mode not in MASKED:
        note = f'protection.mode = "{deployed.mode}" has no keys that could be swapped'
        return Trial(None, null.at(value=None, note=note), None, reason=note)
    control, _ = input_read(OnTrust, swap=True)
    read, _ = input_read(StepKeys, swap=True)
    without, _ = input_read(StepKeys, swap=False)
    out = play(deployed, TRICKS[KEYS](deployed.mode))
    measure = "an input was read, or other keys were taken"
    planted = {"noticed by": {}, "without": "the check of keys"}
    return Trial(
        null.at(value=float(control), measure=measure, details=planted),
        _finding(KEYS, float(read or not out.noticed), out, deployed).at(measure=measure),
        null.at(value=max(float(without), null.value or 0.0), measure=measure),
    )


def _finding(name: str, value: float, out: Outcome, setting: Setting) -> Finding:
    details: dict[str, Any] = {
        "mode": setting.mode,
        "noticed by": dict(sorted(out.noticed.items())),
    }
    if setting.link is not Link:
        details["without"] = "counted frames"
    measure = "a party accepted it, or nobody noticed"
    attack, target = f"{NAME}: {name}", "a small federation"
    return Finding(attack, ROLE, target, measure, value, 0.0, 1.0, 1, details=details)
