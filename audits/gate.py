"""The control gate: no verdict without a control on which the attack succeeds, and one it fails.

Each attack runs on an unprotected run, on the deployed one, and on a null in which there is nothing
to be found. "Nothing was found" counts only where the same attack finds something unprotected and
finds nothing in the null; otherwise the attack is broken or too weak, and the verdict says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from secure_fl.audits.base import Finding


class Verdict(StrEnum):
    """What three findings of one attack say together."""

    HOLDS = "holds"  # it works unprotected, and not here
    LEAKS = "leaks"  # it works here
    INCONCLUSIVE = "inconclusive"  # it does not even work unprotected, or works on nothing
    UNTESTED = "not tested"  # there was nothing it could be run on


@dataclass(frozen=True, slots=True)
class Trial:
    """One attack on one role: on the control, on what is deployed, and on the null."""

    control: Finding | None
    deployed: Finding | None
    null: Finding | None
    reason: str = ""  # why a finding is missing

    @property
    def verdict(self) -> Verdict:
        """Judge; an attack that was not run on all three has shown nothing."""
        if self.deployed is None or self.control is None or self.null is None:
            return Verdict.UNTESTED
        if not self.control.succeeded or self.null.succeeded:
            return Verdict.INCONCLUSIVE
        return Verdict.LEAKS if self.deployed.succeeded else Verdict.HOLDS

    @property
    def attack(self) -> str:
        """The attack's name."""
        return self._any.attack

    @property
    def role(self) -> str:
        """Whose view it had."""
        return self._any.role

    @property
    def _any(self) -> Finding:
        found = self.deployed or self.control or self.null
        if found is None:
            raise ValueError("a trial holds at least one finding")
        return found
