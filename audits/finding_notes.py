"""Short descriptions of findings, each compared with guessing."""

from __future__ import annotations

from secure_fl.audits.attacks import reading

BAG = "token bag"


def note(attack: str, measure: str, value: float, chance: float) -> str:
    """Describe what an attack reached, with the figure that guessing gives."""
    if attack == BAG:
        return f"which vocabulary words occur: {100 * value:.0f} %, guessing: {100 * chance:.0f} %"
    if attack in (reading.ONE, reading.SUM):
        return f"correlation {value:.2f}, noise: {chance:.2f}"
    if attack == reading.COUNTS:
        return f"{100 * value:.0f} % of the counts"
    return f"{measure} {value:.2f}, guessing: {chance:.2f}"


def target(name: str) -> str:
    """Describe the target of a finding: "hospital-3", "2 hospitals together"."""
    if name.startswith("the sum of "):
        return f"{name.removeprefix('the sum of ')} hospitals together"
    if name.endswith(" hospitals, each separately"):
        return f"each of {name.split(' ', 1)[0]} hospitals"
    return name
