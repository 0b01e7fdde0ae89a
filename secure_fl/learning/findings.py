"""The results of a program that trains nothing, as a checkpoint keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Findings:
    """A site's findings, which are equal at all members."""

    def __init__(self, findings: dict[str, Any]) -> None:
        self._findings = findings

    def state_dict(self) -> dict[str, Any]:
        """Return the findings."""
        return dict(self._findings)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the findings."""
        self._findings |= state
