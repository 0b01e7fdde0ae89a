"""The mean of the parties' predictions on public records, opened at the host and nowhere else.

Where the run asks for noise, every party adds its share before anything leaves, so nobody ever
sees a mean without it. Such noise is sized for what one hospital may change, whatever its size:
there all hospitals count alike.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from secure_fl.algorithms.public_coins import sampled
from secure_fl.algorithms.updates import RECORDS
from secure_fl.errors import CohortError, SettingsError
from secure_fl.learning.site import Site
from secure_fl.party.cohort import Cohort
from secure_fl.protocol.messages import Audience

Counted = Literal["records", "parties"]  # what a mean counts

PREDICTIONS, WEIGHT = "predictions", "weight"


class Ensemble:
    """Eqs. 6 and 10 of FedID: Σₖ (|Dᵏ|/|D|)·yᵏ over the parties of a round."""

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
        bound: float = 1.0,  # of every value; probabilities keep within 1
    ) -> None:
        self.weight = 0.0  # |Dᵏ|/|D|, or 0 for who was not drawn
        self._cohort, self._site = cohort, site
        self._shape, self._sums, self._share, self._bound = shape, sums, share, bound
        self._noise = cohort.prediction_noise(*shape, sums * rounds)
        self._alike = counted == "parties"
        self._drawn: frozenset[str] = frozenset()
        if self._noise is not None and not (self._alike and bound <= 1):
            raise SettingsError(
                "noise is sized for class probabilities in which all hospitals count alike",
                fix='set algorithm.counted = "parties", in an algorithm that sends probabilities',
                field="algorithm.counted",
            )

    @property
    def rules(self) -> str:
        """What all members must have alike of the noise, for `agree`."""
        return "" if self._noise is None else f"{self._noise.scale:.6g} {self._noise.reach:.6g}"

    def draw(self, round: int) -> bool:
        """Draw a round's parties; whether this one is drawn."""
        cohort = self._cohort
        # Whoever may yet drop out is drawn on top: of the drawn ones, a sum's worth always remains.
        at_least = cohort.min_cohort + len(cohort.parties) - cohort.threshold
        self._drawn = sampled(self._site.seed, round, cohort.parties, self._share, at_least)
        return cohort.me in self._drawn

    async def begin(self, round: int) -> bool:
        """Draw a round's parties, weigh them, and enter its noise; whether this one is drawn."""
        cohort, drawn = self._cohort, self.draw(round)
        if self._noise is not None and not cohort.is_host:
            cohort.reserve(self._noise, self._sums)
        mine = self._site.records if drawn else 0.0
        if self._alike:
            self.weight = float(drawn) / len(self._drawn)
        else:
            told = await cohort.sum({} if cohort.is_host else {RECORDS: mine})
            total = math.inf if cohort.is_host else float(told[RECORDS])
            self.weight = mine / _some(total)
        return drawn

    async def send(self, y: Tensor) -> None:
        """Put this party's predictions into the sum; not drawn, it sends zeros without weight.

        They travel less 1/C, which costs nothing and makes one hospital's part as small as it is.
        """
        weight = float(self._cohort.me in self._drawn) if self._alike else self.weight
        centred = weight * (y - 1 / self._shape[1])
        await self._sum(centred.reshape(self._shape), weight)

    async def open(self) -> Tensor:
        """The parties' mean, at the host: near to probabilities, where these are what was sent."""
        total, weight = await self._sum(torch.zeros(self._shape), 0.0)
        return total / _some(weight) + 1 / self._shape[1]

    async def _sum(self, values: Tensor, weight: float) -> tuple[Tensor, float]:
        given = {PREDICTIONS: values.cpu().numpy()}
        if self._noise is None:
            given[WEIGHT] = torch.tensor([weight]).numpy()
        sums = await self._cohort.sum(
            given, reveal=Audience.HOST, bound=self._bound, noise=self._noise
        )
        if not self._cohort.is_host:
            return values, 0.0
        total = torch.as_tensor(sums[PREDICTIONS], dtype=torch.float32)
        if self._noise is None:
            return total, float(sums[WEIGHT][0])
        return total, float(len(self._drawn & set(self._cohort.survivors)))


def _some(weight: float) -> float:
    if not weight > 0:
        raise CohortError(
            "nobody that was drawn for this round is left",
            fix="bring the parties back and resume the run",
        )
    return weight


def as_shares(y: Tensor) -> Tensor:
    """The nearest thing to probabilities: noise and rounding may leave less than 0."""
    y = y.clamp(min=0)
    total = y.sum(-1, keepdim=True)
    return torch.where(total > 0, y / total.clamp(min=1e-12), 1 / y.shape[-1])
