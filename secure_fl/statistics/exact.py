"""Integers that travel exactly: digits small enough for one field of a slot, and for a float32.

A field of 24 bits holds every integer up to 2²³-1 as it is, for its clip is that number. Digits to
the base 2¹⁶ leave room for sums over 128 parties below 2²³, exact in clear runs, too.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from secure_fl.party.cohort import Cohort
from secure_fl.settings import ProtectionSettings

Integers = NDArray[np.int64]
BITS = 24  # of the run's protection
BOUND = float((1 << 23) - 1)
BASE, PLANES = 16, 4  # 4 digits of 16 bits hold every integer of numpy's


def sealed(protection: ProtectionSettings) -> ProtectionSettings:
    """How sums of statistics are protected: as others, on a grid that holds integers."""
    return protection.model_copy(update={"bits": BITS, "noise": None})


async def exact_sum(
    cohort: Cohort, values: Mapping[str, Integers], *, planes: int = PLANES, together: bool = False
) -> dict[str, Integers]:
    """Add integers over the parties; without rounding. {}: a party left since the last sum.

    `planes`: digits of each; two hold counts up to 2³², at every party.
    """
    digits = {
        f"{name} {place}": (values[name] >> BASE * place) & (1 << BASE) - 1
        if place < planes - 1
        else values[name] >> BASE * place
        for name in values
        for place in range(planes)
    }
    opened = await cohort.sum(digits, bound=BOUND, together=together)
    if not opened:
        return {}
    return {
        name: sum(
            np.rint(opened[f"{name} {place}"]).astype(np.int64) << BASE * place
            for place in range(planes)
        ).reshape(values[name].shape)  # type: ignore[union-attr]
        for name in values
    }
