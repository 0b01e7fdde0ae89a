"""Settings of InclusiveFL and its depth baselines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, field_validator, model_validator

from secure_fl.algorithms.base import Algorithm, Demands
from secure_fl.algorithms.inclusivefl.ladder import Ladder
from secure_fl.algorithms.settings import Decay, Fraction, Rate, require_passes
from secure_fl.errors import SettingsError
from secure_fl.settings import ModelSettings, Positive, TaskSettings, TrainingSettings

if TYPE_CHECKING:
    from secure_fl.algorithms.layers import Part

Weights = Literal["users", "samples"]  # what a mean counts
MomentumSource = Literal["unmixed", "mixed", "off"]

TIERS = {"weak": 2, "medium": 3, "strong": 4}  # halves and quarters of the built-in model


class Tiered(Algorithm):
    """Tiers of depth, local training and the server's step."""

    tiers: dict[str, Positive] = TIERS
    """Tier -> number of encoder layers. The paper's: 4, 8, 12."""
    shares: dict[str, Rate] | None = None
    """Tier -> fraction of the hospitals without a tier of their own. Default: equal."""
    steps: Positive | None = None
    """Local steps in each round. Default: complete epochs."""
    weights: Weights = "users"
    """Weight of a hospital in a mean: 1 (users), or its records, which stay private."""
    sample: Fraction = 1.0
    """Fraction of the hospitals that take part in a round, drawn at random."""
    server_optimizer: Literal["linear", "fedadam"] = "linear"
    """fedadam: the paper's. Each tier then needs protection.min_cohort hospitals."""
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
    def _distinct_depths(cls, tiers: dict[str, int]) -> dict[str, int]:
        if not tiers or len(set(tiers.values())) < len(tiers):
            raise ValueError("at least one tier, and no two with the same number of layers")
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
                'weights = "users" where sample is below 1: sums of records over different draws '
                "of parties reveal how many each hospital has"
            )
        return self

    def used_only_with(self) -> Mapping[str, tuple[bool, str]]:
        """List the fields of each server."""
        linear = self.server_optimizer == "linear"
        return {
            'server_optimizer = "linear"': (linear, "linear_rate"),
            'server_optimizer = "fedadam"': (not linear, "server_learning_rate beta1 beta2 tau"),
        }

    def check_task(self, task: TaskSettings, training: TrainingSettings) -> None:
        """Refuse counted steps under DP-SGD."""
        require_passes(self.steps, training)

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """Ask for whole passes, or for counted steps, by the drawn parties."""
        fit = Demands.of_fit(self, training)
        return replace(fit, steps=self.steps or 0, drawn=self.sample)

    def trains(self, model: ModelSettings) -> tuple[ModelSettings, ...]:
        """Name the model of the deepest tier, which is the most a party trains."""
        return (model.model_copy(update={"layers": max(self.tiers.values())}),)

    @property
    def ladder(self) -> Ladder:
        """The tiers by depth."""
        return Ladder.of(self.tiers)


class InclusiveFL(Tiered):
    """Tiers of different depth share lower layers; upper layers learn from larger models."""

    name: Literal["inclusivefl"] = "inclusivefl"
    beta: Annotated[float, Field(ge=0, le=1)] = 0.5
    """β. The paper's: 0.5 for NER, 0.2 for GLUE."""
    momentum: MomentumSource | None = None
    """The g that line 22 reads: line 14's (unmixed), or the result of line 17 (mixed). Default:
    unmixed if the members train by SGD, else off, because AdamW's updates carry no momentum."""

    @model_validator(mode="after")
    def _weights_that_fit(self) -> InclusiveFL:
        if (self.server_optimizer, self.weights) == ("linear", "samples"):
            raise ValueError(
                'weights "users" where server_optimizer is "linear": factors are applied before '
                "sealing, and a party does not know how many records the others have"
            )
        return self

    def momentum_source(self, training: TrainingSettings) -> MomentumSource:
        """Return the momentum of these settings, or the default for the members' optimiser."""
        return self.momentum or ("unmixed" if training.optimizer == "sgd" else "off")

    def check_task(self, task: TaskSettings, training: TrainingSettings) -> None:
        """Refuse a weight of momentum where there is none."""
        super().check_task(task, training)
        default = type(self).model_fields["beta"].default
        if self.momentum_source(training) == "off" and self.beta != default:
            raise SettingsError(
                f"algorithm.beta = {self.beta} has no effect: momentum is off"
                + ("" if self.momentum else f" by default with {training.optimizer}"),
                fix='set algorithm.momentum = "unmixed", or remove algorithm.beta',
                field="algorithm.beta",
            )

    def sharing(self, tiers: Mapping[str, str], model: ModelSettings, min_cohort: int) -> str:
        """Describe the hospitals over which each layer is summed."""
        from secure_fl.algorithms.inclusivefl.participants import in_words, of_tiers, sharing

        who = of_tiers(self.ladder, tiers, min_cohort)
        if not who.ladder.tiers:
            return ""
        return in_words(sharing(who, embeddings=_trains_embeddings(model)))

    def check_tiers(
        self, tiers: Mapping[str, str | None], model: ModelSettings, min_cohort: int
    ) -> None:
        """Refuse a tier with too few hospitals for a sum."""
        from secure_fl.algorithms.inclusivefl import participants

        known = participants.tiers_of(tiers, self.ladder.tiers, self.shares)
        who = participants.of_tiers(self.ladder, known, min_cohort)
        if self.server_optimizer == "linear":
            trained: tuple[Part, ...] = ("embeddings",) if _trains_embeddings(model) else ()
            participants.require_shared_layers(who, None, trained)
        else:
            participants.require_large_tiers(who, None)


def _trains_embeddings(model: ModelSettings) -> bool:
    return not model.freeze_embeddings and model.adapter is None
