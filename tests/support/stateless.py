"""A site, or a part of one, that has no state to save."""

from __future__ import annotations

from typing import Any


class Stateless:
    """Saves nothing, and takes nothing back."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Nothing to take back."""
