"""What anybody can do to a sealed sum, and no coordinator of ours does."""

from __future__ import annotations

import numpy as np

from secure_fl.crypto.public import Sum
from secure_fl.crypto.scheme import Slots


class ChangedSum(Sum):
    """A sealed sum that is shifted and scaled without its key."""

    __slots__ = ()

    def add_plain(self, slots: Slots) -> None:
        """Add integers mod the modulus in the clear."""
        modulus = np.uint64(self._context.scheme.modulus)
        self.subtract_plain((modulus - slots) % modulus)

    def scale(self, factor: int) -> None:
        """Multiply by a non-zero integer: add the sum to itself, and negate it."""
        itself = self.result()
        for _ in range(abs(factor) - 1):
            self.add(itself)
        if factor < 0:
            for part in self._parts:
                self._evaluator.negate_inplace(part)
