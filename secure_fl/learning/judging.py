"""A site's judgement of what a round did: how wrong the shared model is on its own dev records."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from secure_fl.errors import DataError
from secure_fl.learning.site import Site


@dataclass(frozen=True, slots=True)
class DevRecords:
    """Judges by the dev records of a site; for `party.guard`."""

    site: Site
    label: str  # of the model that the sums move

    def __post_init__(self) -> None:
        if not self.site.silo.dev:
            raise DataError(
                "there are no dev records, and [guard] tests every round on them",
                fix="give this site a dev split, or leave [guard] out of the plan",
                party=self.site.name,
                split="dev",
            )

    def wrong(self) -> NDArray[np.float64]:
        """1 - e^-loss of each record: of a class, 1 less its probability; bounded for all tasks.

        So no single record outweighs the others, as its loss could. What is no number is wrong.
        """
        wrong = 1 - np.exp(-self.site.losses(self.label))
        found: NDArray[np.float64] = np.nan_to_num(wrong, nan=1.0)
        return found

    def forget(self, round: int) -> None:
        """Drop what was measured in a round that is undone."""
        self.site.forget(round)
