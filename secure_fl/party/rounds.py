"""A round as a party program sees it, and the interface of states that a checkpoint keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a run: its number from 1, and the number of all rounds."""

    number: int
    total: int
    undone: int = 0  # earlier rounds that were undone, and are repeated

    @property
    def progress(self) -> float:
        """The share of the run that is over when this round ends, in (0, 1]."""
        return (self.number - self.undone) / self.total

    def measured(self, times: int) -> bool:
        """True in the last round, and before it in about so many rounds at equal distances."""
        return self.number % max(1, self.total // times) == 0 or self.number == self.total

    def at(self, step: int, steps: int) -> float:
        """Return the share of the run that is over in the middle of a step, counted from 0."""
        return (self.number - self.undone - 1 + (step + 0.5) / steps) / self.total


class Stateful(Protocol):
    """Anything whose state a checkpoint can keep: modules, optimisers, our own servers."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state: dict[str, Any], /) -> Any:
        """Restore the state."""
