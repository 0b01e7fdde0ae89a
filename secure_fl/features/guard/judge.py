"""Judges of a round: how wrong the shared model is on a party's own dev records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from secure_fl.errors import DataError
from secure_fl.learning.site import Site

Errors: TypeAlias = NDArray[np.float64]  # of each dev record, from 0 (right) to 1 (wrong)


class Judge(Protocol):
    """An estimate of how good a state is, on records of one party."""

    def wrong(self) -> Errors:
        """Measure how wrong the current models are on each dev record, from 0 to 1."""

    def forget(self, round: int) -> None:
        """Drop the measurements of a round that is undone."""


@dataclass(frozen=True, slots=True)
class DevRecords:
    """The judge that measures a site's shared model on its own dev records."""

    site: Site
    label: str  # of the model that the sums change

    def __post_init__(self) -> None:
        if not self.site.silo.dev:
            raise DataError(
                "there are no dev records, and [guard] tests every round on them",
                fix="give this site a dev split, or remove [guard] from the plan",
                party=self.site.name,
                split="dev",
            )

    def wrong(self) -> Errors:
        """Return 1 - e^-loss of each record: for a class, 1 minus its probability.

        For several labels, it is 1 minus the geometric mean of their probabilities. The loss itself
        has no bound, so that one record could outweigh all others. NaN counts as 1.
        """
        wrong = 1 - np.exp(-self.site.losses(self.label) / self.site.task.decisions)
        errors: Errors = np.nan_to_num(wrong, nan=1.0)
        return errors

    def forget(self, round: int) -> None:
        """Drop the measurements of a round that is undone."""
        self.site.forget(round)
