"""The settings that InclusiveFL and its depth baselines have in common, and their ladder of tiers.

InclusiveFL, Sec. 3.1: all tiers hold the first layers of one model. A tier's own last layer,
pooler and head are isolated; embeddings and the layers below are shared with all deeper tiers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from secure_fl.algorithms.base import Algorithm, Demands
from secure_fl.algorithms.fedadam import Decay, Rate
from secure_fl.algorithms.layers import Part
from secure_fl.algorithms.tiers import Share, Weights
from secure_fl.settings import ModelSettings, Positive, TrainingSettings


@dataclass(frozen=True, slots=True)
class Ladder:
    """Tiers by depth, from the smallest up."""

    depths: Mapping[str, int]  # tier -> encoder layers, strictly increasing

    @classmethod
    def of(cls, tiers: Mapping[str, int]) -> Ladder:
        """Sort the tiers; no two are of one depth."""
        return cls(dict(sorted(tiers.items(), key=lambda tier: tier[1])))

    @property
    def tiers(self) -> tuple[str, ...]:
        """From the smallest to the largest."""
        return tuple(self.depths)

    def only(self, tiers: Sequence[str]) -> Ladder:
        """The ladder without the tiers that nobody is in."""
        return Ladder({tier: depth for tier, depth in self.depths.items() if tier in tiers})

    def above(self, tier: str) -> str | None:
        """The next larger tier."""
        after = self.tiers[self.tiers.index(tier) + 1 :]
        return after[0] if after else None

    def below(self, tier: str) -> str | None:
        """The next smaller tier."""
        before = self.tiers[: self.tiers.index(tier)]
        return before[-1] if before else None

    def last(self, tier: str) -> int:
        """The last layer of this tier's model, from 0: the isolated one."""
        return self.depths[tier] - 1

    def sharers(self, part: Part) -> tuple[str, ...]:
        """The tiers that share a part: all of these have it, and below its last layer."""
        if part == "embeddings":
            return self.tiers
        if isinstance(part, int):
            return tuple(tier for tier in self.tiers if part < self.last(tier))
        return ()

    def distilled(self, tier: str) -> range:
        """The layers whose mean update a smaller tier learns from (lines 21-22, from 0).

        [L_- : L_j] inclusive; the smallest tier has nothing to teach a smaller one, so its last
        layer is all that it could.
        """
        smaller = self.below(tier)
        return range(self.last(smaller if smaller else tier), self.depths[tier])


TIERS = {"weak": 2, "medium": 3, "strong": 4}  # halves and quarters of the built-in model


class Tiered(Algorithm):
    """Tiers of depth, how their parties train, and how the server moves the models."""

    tiers: dict[str, Positive] = TIERS
    """Tier -> number of encoder layers. The paper's: 4, 8, 12."""
    shares: dict[str, Share] | None = None
    """Tier -> fraction of the hospitals without a tier of their own. Default: equal."""
    steps: Positive | None = None
    """Local steps in each round. Default: complete epochs."""
    weights: Weights = "users"
    """Weight of a hospital in a mean: 1 (users), or its records, which stay private."""
    sample: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of the hospitals that take part in a round, drawn at random."""
    server_optimizer: Literal["linear", "fedadam"] = "linear"
    """fedadam: the paper's."""
    server_learning_rate: Rate = 2e-3
    """η of FedAdam. At 2τ, means far below τ are applied unscaled."""
    beta1: Decay = 0.9
    """β₁."""
    beta2: Decay = 0.99
    """β₂."""
    tau: Rate = 1e-3
    """τ."""
    linear_rate: Rate = 1.0
    """η of the linear server. 1: the means themselves."""

    @field_validator("tiers")
    @classmethod
    def _a_ladder(cls, tiers: dict[str, int]) -> dict[str, int]:
        if not tiers or len(set(tiers.values())) < len(tiers):
            raise ValueError("one tier at least, and no two with the same number of layers")
        return tiers

    @model_validator(mode="after")
    def _shares_of_tiers(self) -> Tiered:
        if unknown := set(self.shares or {}) - set(self.tiers):
            raise ValueError(f"shares of {', '.join(self.tiers)}, not of {min(unknown)}")
        return self

    @model_validator(mode="after")
    def _counts_stay_private(self) -> Tiered:
        if self.sample < 1 and self.weights == "samples":
            raise ValueError(
                'weights = "users" where sample is below 1: sums of records over the parties of '
                "differing draws are equations that tell everybody how many each hospital has"
            )
        return self

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """Whole passes, or counted steps in place of them, by those who are drawn."""
        fit = Demands.of_fit(self, training)
        return replace(fit, steps=self.steps or 0, drawn=self.sample)

    def trains(self, model: ModelSettings) -> tuple[ModelSettings, ...]:
        """At most the model of the deepest tier."""
        return (model.model_copy(update={"layers": max(self.tiers.values())}),)

    @property
    def ladder(self) -> Ladder:
        """The tiers by depth."""
        return Ladder.of(self.tiers)
