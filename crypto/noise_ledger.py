"""Noised sums in the ledger: entered before they are computed (promise P8)."""

from __future__ import annotations

from dataclasses import dataclass

from secure_fl.crypto.ledger import Account, Budget, Ledger
from secure_fl.crypto.noise import SkellamNoise
from secure_fl.errors import BudgetError
from secure_fl.protocol import Noise


@dataclass(frozen=True, slots=True)
class NoiseLedger:
    """One party's account for sums that protect it as a whole: unit "hospital"."""

    ledger: Ledger
    dataset: str
    budget: Budget
    run: str

    def __call__(self, noise: Noise, releases: int, round: int) -> None:
        """Reserve `releases` sums under this noise, or raise BudgetError."""
        if not isinstance(noise, SkellamNoise):
            raise BudgetError(
                f"what {type(noise).__name__} spends is not known",
                fix="use crypto.noise.SkellamNoise",
            )
        account = Account(self.dataset, "hospital", noise.adjacency)
        event = noise.event(releases)
        self.ledger.reserve(event, account, self.budget, run=self.run, round=round or None)
