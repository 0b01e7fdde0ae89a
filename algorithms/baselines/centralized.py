"""Centralized: all records in one place. What federation tries to come near to.

It is a yardstick on one machine only. Its program is Local's, at one site that holds the records
of all; every hospital's own dev and test records measure the one model.
"""

from __future__ import annotations

from typing import Literal

from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.demands import Demands
from secure_fl.settings import ModelSettings, TrainingSettings


class Centralized(Algorithm):
    """Pool the records of all parties (only where they already lie on one machine) and train."""

    name: Literal["centralized"] = "centralized"

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """Whole passes, and no sum in each round."""
        return Demands.of_fit(self, training)

    def trains(self, model: ModelSettings) -> tuple[ModelSettings, ...]:
        """The shared model."""
        return (model,)
