"""Noise on sums of predictions as the settings ask for it: sized before a run, or refused.

It follows from the settings, the number of parties and the threshold alone, so that parties and
host find the same noise, in a resumed run too. What a ledger holds decides only who may take part.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from secure_fl.crypto.privacy.budget_table import PREDICTIONS, prediction_rows, table
from secure_fl.crypto.privacy.noise import SkellamNoise
from secure_fl.crypto.privacy.planning import (
    PredictionBudget,
    Predictions,
    plan_predictions,
    size_noise,
)
from secure_fl.errors import BudgetError
from secure_fl.settings import NoiseSettings


@dataclass(frozen=True, slots=True)
class Sized:
    """The noise of every sum of a plan, and what it comes to."""

    noise: SkellamNoise
    plan: Predictions
    budget: PredictionBudget

    def facts(self) -> dict[str, Any]:
        """The figures that decide whether the sums are worth anything; all of them are public."""
        found = self.budget
        return {
            "epsilon": found.epsilon,
            "delta": found.delta,
            "releases": found.releases,
            "std_guaranteed": found.std,
            "std_all_present": found.std_all_present,
            "signal": found.signal,
            "signal_to_noise": found.signal_to_noise,
            "correct": found.correct,
            "drowned": found.drowned,
            "dropouts": self.plan.dropouts,
            "colluders": self.plan.colluders,
            "scale": self.plan.scale,
        }

    def text(self) -> str:
        """The table that `secure-fl budget` prints."""
        return table(PREDICTIONS, prediction_rows(self.plan, self.budget))

    def require_useful(self) -> None:
        """Raise BudgetError with the table if the noise drowns the signal."""
        if self.budget.drowned:
            raise BudgetError(
                f"the noise drowns what the parties agree on\n{self.text()}",
                fix="change the plan as the last line says, or set protection.noise.force = true",
                reason="noise-hides-signal",
            )


def planned(
    settings: NoiseSettings,
    *,
    examples: int,
    classes: int,
    releases: int,
    parties: int,
    threshold: int,
) -> Predictions:
    """Describe so many sums of so many predictions each."""
    dropouts = max(0, parties - threshold) if settings.dropouts is None else settings.dropouts
    return Predictions(
        parties=parties,
        classes=classes,
        examples=examples,
        batch=examples,
        rounds=1,
        exchanges=releases,
        delta=settings.delta,
        dropouts=dropouts,
        colluders=settings.colluders,
        scale=settings.scale,
    )


def sized(settings: NoiseSettings, plan: Predictions) -> Sized:
    """Find the noise that the settings ask for."""
    target = settings.epsilon if settings.target_epsilon is None else settings.target_epsilon
    return _sized(plan, None if settings.std is not None else target, settings.std)


@lru_cache(maxsize=64)  # all members of a simulated run ask for the same
def _sized(plan: Predictions, epsilon: float | None, std: float | None) -> Sized:
    noise = size_noise(plan, epsilon=epsilon, std=std)
    return Sized(noise, plan, plan_predictions(plan, epsilon=epsilon, std=std))
