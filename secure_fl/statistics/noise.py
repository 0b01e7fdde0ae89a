"""Noise on a question's counts: each site adds its share, so nobody ever holds the exact sum.

Skellam shares (arXiv 2110.04995): with one record of each patient, one patient changes one cell by
one, so Δ₁ = Δ₂ = 1. What is spent is in the site's ledger before a share is drawn.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from secure_fl.crypto.privacy.accounting import SkellamRelease, calibrate, epsilon
from secure_fl.crypto.privacy.ledger import Account, Budget, Ledger, Unit
from secure_fl.crypto.privacy.noise import LARGEST_VARIANCE, skellam
from secure_fl.errors import BudgetError
from secure_fl.statistics.questions import Question
from secure_fl.statistics.rules import StatisticsRules

Integers = NDArray[np.int64]
COLLUDERS = 1  # sites that may subtract their own share


def release_of(question: Question) -> SkellamRelease:
    """The least noise that costs no more than the question's ε."""
    target, delta = question.epsilon or 0.0, question.delta
    mu = calibrate(
        lambda μ: [SkellamRelease(μ, 1.0, 1.0)],
        target,
        delta,
        low=1e-3,
        high=LARGEST_VARIANCE / 2,
        precision=1e-4,
    )
    return SkellamRelease(mu, 1.0, 1.0)


def share(release: SkellamRelease, size: int, sites: int, threshold: int) -> Integers:
    """One site's part of the noise: enough with the others', though some leave or collude."""
    honest = max(1, threshold - COLLUDERS) if sites > 1 else 1
    return skellam(release.mu / honest, size)


def unit_of(table: Any) -> Unit:
    """Return the unit that noise on counts of this table protects."""
    return "patient" if "patient" in table else "record"


@dataclass
class NoiseBudget:
    """One site's account; without a ledger it lasts as long as the process."""

    dataset: str
    unit: Unit
    ledger: Ledger | None = None

    def __post_init__(self) -> None:
        self._unkept: list[SkellamRelease] = []
        self._run = os.urandom(8).hex()

    def reserve(self, release: SkellamRelease, question: Question, rules: StatisticsRules) -> None:
        """Enter it, or raise BudgetError; from here on it is spent."""
        budget = Budget(rules.max_epsilon, question.delta)
        if self.ledger is not None:
            self.ledger.reserve(release, Account(self.dataset, self.unit), budget, run=self._run)
            return
        after = epsilon([*self._unkept, release], question.delta)
        if not after <= budget.epsilon:
            raise BudgetError(
                f"the budget of statistics is ε = {budget.epsilon:g} per {self.unit}, and this "
                f"answer would make it {after:.3g}",
                fix="ask for more noise (a smaller epsilon); a larger max_epsilon in "
                "[site.statistics] is a decision of those who answer for the data",
                party=self.dataset,
                reason="spent",
            )
        self._unkept.append(release)
