"""Proofs that the parts of a model which tiers share are equal at all who hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from secure_fl.algorithms.updates import digest
from secure_fl.errors import Disagreement
from secure_fl.party.cohort import Cohort


async def agree_by_name(
    cohort: Cohort, weights: Mapping[str, Tensor], common: Mapping[str, Sequence[str]]
) -> None:
    """Stop unless parts are equal, bit for bit, at all parties that hold them.

    A party can prove only what it holds, so each sends a digest per part, sealed for the parties.
    """
    digests = {about: digest({n: weights[n] for n in names}) for about, names in common.items()}
    told = await cohort.share({n: np.frombuffer(d, np.uint8) for n, d in digests.items()})
    for party, proofs in told.items():
        for about in digests.keys() & proofs.keys():
            if proofs[about].tobytes() != digests[about]:
                raise Disagreement(
                    f"the model ({about}) differs between parties",
                    fix="compare settings, models and library versions with this party",
                    party=party,
                )
