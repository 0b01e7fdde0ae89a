"""What all algorithms' settings share."""

from __future__ import annotations

from secure_fl.settings import Positive, Section


class Algorithm(Section):
    """The settings of one algorithm; `name` picks it in a settings file."""

    name: str
    rounds: Positive = 5  # exchanges of models
    epochs: Positive = 1  # local passes over the records in each round

    @property
    def caveat(self) -> str:
        """What these settings let parties see beyond sums, for the result's statement."""
        return ""

    def releases(self, public: int, batch: int) -> tuple[int, int] | None:
        """How many predictions a sum for the host holds, and how many such sums a run opens.

        Given the number of public records and `training.batch_size`. None: no sum holds
        predictions, so no noise could be sized for them.
        """
        return None
