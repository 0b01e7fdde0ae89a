"""Noise on all counts of a codebook: each hospital adds its share, and nobody has exact counts.

Each table counts each of a patient's records once. So T tables are T releases, and one patient with
K records changes the counts of each by Δ₁ = Δ₂ = K at most. Shares are Skellam noise
(arXiv 2110.04995) from the operating system's randomness.
"""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

from secure_fl.crypto.privacy.accounting import SkellamRelease, epsilon
from secure_fl.crypto.privacy.count_noise import counts_release
from secure_fl.crypto.privacy.ledger import Account, Budget, Unit
from secure_fl.errors import BudgetError
from secure_fl.features.statistics.codebook import Codebook

if TYPE_CHECKING:
    from secure_fl.learning.site import Site


def release_of(codebook: Codebook) -> SkellamRelease:
    """Return the least noise that costs no more than the codebook's ε."""
    tables, records = len(codebook.scopes), float(codebook.records_per_patient)
    return counts_release(codebook.epsilon or 0.0, codebook.delta, releases=tables, change=records)


class NoiseBudget:
    """One site's account of noised counts."""

    def __init__(self, site: Site, codebook: Codebook, unit: Unit) -> None:
        self._codebook, self._account = codebook, Account(f"{site.name}, codebooks", unit)
        self._budget = Budget(site.options.get("max_epsilon", math.inf), codebook.delta)
        self._ledger = None if site.ledger is None else site.ledger()

    def check(self) -> None:
        """Raise BudgetError if the budget cannot pay; nothing is spent."""
        before = [] if self._ledger is None else self._ledger.events(self._account)
        after = epsilon([*before, release_of(self._codebook)], self._budget.delta)
        if not after <= self._budget.epsilon:
            raise BudgetError(
                f"this codebook would make epsilon {after:.3g} for each {self._account.unit}, and "
                f"the limit is {self._budget.epsilon:g}",
                fix="write a smaller epsilon in the codebook; a larger max_epsilon in "
                "[site.statistics] is a decision of those who answer for the records",
                party=self._account.dataset,
                reason="spent",
            )

    def reserve(self) -> None:
        """Enter the release durably before its noise is drawn."""
        if self._ledger is not None:
            event, run = release_of(self._codebook), os.urandom(8).hex()
            self._ledger.reserve(event, self._account, self._budget, run=run)
