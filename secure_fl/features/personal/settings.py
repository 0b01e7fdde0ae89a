"""The [personal] section of a settings file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from secure_fl.settings import Positive, PositiveReal, Section


class PersonalSettings(Section):
    """Personal models: after the last round, each hospital trains its own copy of the model.

    It compares the shared model, the personal one and training alone on its own dev records.
    """

    method: Literal["finetune", "ditto", "head", "adapter"] = "finetune"
    """The part of the copy that is trained. finetune: all trained values. ditto: all, with a pull
    towards the shared model. head: the output layer and all norms. adapter: a second adapter,
    around the frozen shared model."""
    epochs: Positive = 3
    """Passes over the hospital's own records."""
    pull: PositiveReal = 0.1
    """λ of ditto: weight of half the squared distance from the shared model in the loss."""
    rank: Positive = 8
    """Rank of the second adapter."""
    alone: bool = True
    """Also train a model on the hospital's own records alone, with as many passes as all training
    of the run. Without it there is nothing to vote on."""
    coverage: Annotated[float, Field(gt=0.5, lt=1)] | None = None
    """Share of records whose true label must be among the answers. Each hospital then gets its own
    threshold on probabilities; with several labels, it is the share of a record's labels. Default:
    no thresholds."""
    calibrate: bool = False
    """Each hospital gets a temperature, which divides the model's logits, so that its
    probabilities are right on its own records. Thresholds then are on these probabilities."""

    @property
    def curves(self) -> bool:
        """True if hospitals sum curves of losses."""
        return self.calibrate or self.coverage is not None
