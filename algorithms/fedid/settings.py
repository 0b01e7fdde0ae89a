"""Settings of FedID."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, model_validator

from secure_fl.algorithms.base import Demands
from secure_fl.algorithms.settings import (
    OwnShares,
    PersonalDistillation,
    Targets,
    batches_together,
)
from secure_fl.settings import Positive, TrainingSettings

Feedback = Literal["scalar", "exact", "none"]


FeedbackScale = Literal["unit", "printed"]

FEW = 64  # labelled records that all judge every step, unless the settings name a number


class FedID(PersonalDistillation):
    """The host's labelled records show the parties which of their predictions helped."""

    name: Literal["fedid"] = "fedid"
    own_shares: OwnShares | None = None
    """Class shares of a hospital in its predictions. divided: it predicts as if it had equally many
    records of each class. Default: divided, but kept under DP-SGD."""
    targets: Targets = "soft"
    """Predictions that the host learns from. hard: votes, as in the authors' code."""
    feedback: Feedback = "none"
    """scalar: as in the authors' code. exact: the derivative."""
    feedback_scale: FeedbackScale = "unit"
    """printed: unscaled, about a thousandth of the other terms of Eq. 15."""
    feedback_weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of g_feedback in Eq. 15."""
    feedback_batch: Positive | None = None
    """Labelled records per step. Default: all, but at most 64 or training.batch_size, whichever is
    larger."""
    distill: bool = True
    """false: Table 4 without g_distill."""
    public_batch: Positive | None = None
    """Public records per step. Default: training.batch_size."""
    batches_per_exchange: Positive | None = None
    """Public batches per exchange, at most: equal groups of them make up a pass. 1: as printed.
    Default: a complete pass, so that no model changes before all members have predicted."""
    fresh_optimizers: bool = False
    """New optimizers for every step, as in the authors' code."""

    @model_validator(mode="after")
    def _something_to_learn(self) -> FedID:
        if not self.distill and self.feedback == "none":
            raise ValueError('distill = true or feedback = "scalar": parties have no other loss')
        if self.feedback != "exact":
            return self
        if self.targets == "hard" or self.fresh_optimizers:
            raise ValueError(
                'targets = "soft" and fresh_optimizers = false where feedback is "exact": votes '
                "have no derivative, and the host's step is plain gradient descent"
            )
        if self.host_learning_rate is None:
            raise ValueError(
                'host_learning_rate, about 0.1, where feedback is "exact": the host\'s step is '
                "plain gradient descent, which learns nothing at a rate for AdamW"
            )
        return self

    @property
    def caveat(self) -> str:
        """A warning for the result if feedback can reveal the host's labels."""
        if self.feedback == "none":
            return ""
        return (
            f"The host's feedback (feedback = {self.feedback}) lets a party infer the labels of "
            "the host's records, if it knows or guesses their texts."
        )

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """Ask for the largest batch of local, public and the host's labelled records."""
        labelled = 0 if self.feedback == "none" else self.feedback_batch or FEW
        batches = (self.public_batch or training.batch_size, labelled)
        fit = Demands.of_fit(self, training)
        return replace(super().demands(training, values), batch=max(fit.batch, *batches))

    def releases(self, public: int, batch: int) -> tuple[int, int]:
        """Count a sum for each group of batches."""
        batch = min(self.public_batch or batch, public)
        batches = public // batch
        together = batches_together(batches, self.batches_per_exchange)
        return together * batch, self.exchanging * self.distill_epochs * (batches // together)
