"""The mean of the parties' predictions on public records, which only the host opens.

If the run asks for noise, every party adds its share before it sends anything. Nobody ever sees a
mean without noise. The noise covers the largest change that one hospital can make, so all
hospitals then have equal weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from secure_fl.algorithms.public_coins import sampled
from secure_fl.algorithms.settings import Counted
from secure_fl.errors import CohortError, SettingsError
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.protocol.messages import Audience
from secure_fl.protocol.sum_names import RECORDS, WEIGHT

PREDICTIONS = "predictions"  # name in sums


class Ensemble:
    """The weighted mean of a round's predictions: Σₖ (|Dᵏ|/|D|)·yᵏ, Eqs. 6 and 10 of FedID."""

    def __init__(
        self,
        cohort: Cohort,
        site: Site,
        shape: tuple[int, int],  # of one sum: predictions, classes
        sums: int,  # in each round
        rounds: int,
        *,
        counted: Counted = "records",
        share: float = 1.0,  # of the parties, drawn for each round
        bound: float = 1.0,  # of every value; probabilities stay within 1
    ) -> None:
        self.weight = 0.0  # |Dᵏ|/|D|, or 0 if this party was not drawn
        self._cohort, self._site = cohort, site
        self._shape, self._sums, self._share, self._bound = shape, sums, share, bound
        self._noise = cohort.prediction_noise(*shape, sums * rounds)
        self._equal = counted == "parties"
        self._drawn: frozenset[str] = frozenset()
        if self._noise is not None and not (self._equal and bound <= 1):
            raise SettingsError(
                "prediction noise is sized for class probabilities and equal weights",
                fix='set algorithm.counted = "parties", in an algorithm that sends probabilities',
                field="algorithm.counted",
            )

    @property
    def rules(self) -> str:
        """The noise parameters on which all members must agree."""
        return "" if self._noise is None else f"{self._noise.scale:.6g} {self._noise.reach:.6g}"

    def draw(self, round: int) -> bool:
        """Draw a round's parties, and return True if this party is among them."""
        cohort = self._cohort
        limits = cohort.min_cohort, cohort.threshold
        self._drawn = drawn_parties(self._site.seed, round, cohort.parties, self._share, *limits)
        return cohort.me in self._drawn

    async def begin(self, round: int) -> bool:
        """Draw a round's parties, compute their weights and reserve the noise in the ledger.

        Returns True if this party is drawn.
        """
        cohort, drawn = self._cohort, self.draw(round)
        if self._noise is not None and not cohort.is_host:
            cohort.reserve(self._noise, self._sums)
        mine = self._site.records if drawn else 0.0
        if self._equal:
            self.weight = float(drawn) / len(self._drawn)
        else:
            sums = await cohort.sum({} if cohort.is_host else {RECORDS: mine})
            total = math.inf if cohort.is_host else float(sums[RECORDS])
            self.weight = mine / _positive(total)
        return drawn

    async def send(self, y: Tensor) -> None:
        """Add this party's predictions to the sum; a party that was not drawn sends zeros.

        1/C is subtracted from each value, which lowers the largest norm of one hospital's part.
        """
        weight = float(self._cohort.me in self._drawn) if self._equal else self.weight
        centred = weight * (y - 1 / self._shape[1])
        await self._sum(centred.reshape(self._shape), weight)

    async def open(self) -> Tensor:
        """Open the parties' mean at the host. Noise may leave values outside [0, 1]."""
        total, weight = await self._sum(torch.zeros(self._shape), 0.0)
        return total / _positive(weight) + 1 / self._shape[1]

    async def _sum(self, values: Tensor, weight: float) -> tuple[Tensor, float]:
        addends = {PREDICTIONS: values.cpu().numpy()}
        if self._noise is None:
            addends[WEIGHT] = torch.tensor([weight]).numpy()
        sums = await self._cohort.sum(
            addends, reveal=Audience.HOST, bound=self._bound, noise=self._noise
        )
        if not self._cohort.is_host:
            return values, 0.0
        total = torch.as_tensor(sums[PREDICTIONS], dtype=torch.float32)
        if self._noise is None:
            return total, float(sums[WEIGHT][0])
        return total, float(len(self._drawn & set(self._cohort.survivors)))


def drawn_parties(
    seed: int, round: int, parties: Sequence[str], share: float, min_cohort: int, threshold: int
) -> frozenset[str]:
    """Draw a round's parties, so many that a sum stays possible after the tolerated dropouts."""
    return sampled(seed, round, parties, share, min_cohort + len(parties) - threshold)


def _positive(weight: float) -> float:
    if not weight > 0:
        raise CohortError(
            "all parties that were drawn for this round have dropped out",
            fix="restart these parties and resume the run",
        )
    return weight


def as_shares(y: Tensor) -> Tensor:
    """Turn opened means into probabilities: clip negative values and normalise each row."""
    y = y.clamp(min=0)
    total = y.sum(-1, keepdim=True)
    return torch.where(total > 0, y / total.clamp(min=1e-12), 1 / y.shape[-1])
