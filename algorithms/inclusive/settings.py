"""The settings that InclusiveFL and its depth baselines have in common."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from secure_fl.algorithms.base import Algorithm
from secure_fl.algorithms.demands import Demands
from secure_fl.algorithms.fedadam import Decay, Rate
from secure_fl.algorithms.inclusive.ladder import Ladder
from secure_fl.algorithms.tiers import Share, Weights
from secure_fl.settings import ModelSettings, Positive, TrainingSettings

TIERS = {"weak": 2, "medium": 3, "strong": 4}  # halves and quarters of the built-in model


class Tiered(Algorithm):
    """Tiers of depth, how their parties train, and how the server moves the models."""

    tiers: dict[str, Positive] = TIERS  # tier -> encoder layers; the paper's: 4, 8, 12
    shares: dict[str, Share] | None = None  # of parties without a tier of their own; None: alike
    steps: Positive | None = None  # local steps in each round; None: whole epochs
    weights: Weights = "users"  # what a mean counts; records stay private
    sample: Annotated[float, Field(gt=0, le=1)] = 1.0  # share of parties in each round, at random
    server_optimizer: Literal["fedadam", "linear"] = "fedadam"
    server_learning_rate: Rate = 1e-2  # η of FedAdam
    beta1: Decay = 0.9  # β₁
    beta2: Decay = 0.99  # β₂
    tau: Rate = 1e-3  # τ
    linear_rate: Rate = 1.0  # η of the linear server; 1: the means themselves

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
