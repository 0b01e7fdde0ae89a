"""Settings of the baselines, which FedKD, FedID and InclusiveFL are compared with."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field, model_validator

from secure_fl.algorithms.base import Demands, WholeModel
from secure_fl.algorithms.inclusivefl.settings import Weights
from secure_fl.algorithms.settings import (
    Decay,
    Fraction,
    PersonalDistillation,
    PublicDistillation,
    Rate,
    Targets,
    require_passes,
)
from secure_fl.errors import SettingsError
from secure_fl.settings import Positive, TaskSettings, TrainingSettings

Scaled = Literal["always", "training"]

COMPRESSION = 4.0  # 2.05 GB to 0.51 GB in FedKD's Table 2, 1.37 GB to 0.34 GB in its Table 3


class DSFL(PersonalDistillation):
    """All members learn a low-entropy average of the parties' predictions."""

    name: Literal["dsfl"] = "dsfl"
    temperature: Rate = 0.1
    """Temperature T; the default is the paper's."""


class MHAT(PersonalDistillation):
    """Votes train the central model; its own predictions train the parties."""

    name: Literal["mhat"] = "mhat"
    targets: Targets = "hard"
    """Predictions that hospitals send. hard: votes. soft: probabilities."""


class FedED(PublicDistillation):
    """Every round starts from the host's model, and parties send only predictions."""

    name: Literal["feded"] = "feded"


class FedDF(PublicDistillation):
    """The host distils the mean of the parties' logits into the mean of their models."""

    name: Literal["feddf"] = "feddf"
    temperature: Rate = 1.0
    """Temperature of the mean logits; the default is the paper's."""
    logit_bound: Rate = 20.0
    """Logits are clipped to ± this bound before they are sent."""


class Gong(PublicDistillation):
    """Parties train alone, then the host learns the mean of their logits."""

    name: Literal["gong"] = "gong"
    rounds: Literal[1] = 1
    """The method has one exchange."""
    epochs: Positive = 30
    """Local passes; as many as other algorithms make in ten rounds."""
    distill_epochs: Positive = 10
    distance: Literal["mse", "l1"] = "mse"
    """Distance of the host's logits from the mean."""
    logit_bound: Rate = 20.0
    """Logits are clipped to ± this bound before they are sent."""


class FedDropout(WholeModel):
    """FedAvg of random sub-models that keep a share of each layer's units."""

    name: Literal["feddropout"] = "feddropout"
    keep: Fraction = 0.8
    """Fraction of heads and of intermediate units in a sub-model."""


class FetchSGD(WholeModel):
    """Count sketches of the parties' updates are summed; the k largest values come out of them."""

    name: Literal["fetchsgd"] = "fetchsgd"
    steps: Positive | None = None
    """Local steps in a round. Default: `epochs` complete passes."""
    server_learning_rate: Rate = 1.0
    """η."""
    momentum: Decay = 0.9
    """ρ."""
    masking: bool = True
    """Clear the momentum of the weights that moved."""
    k: Positive | Fraction = 0.2
    """Weights that move in a round: a number, or a fraction of all."""
    rows: Positive = 5
    columns: Annotated[int, Field(ge=1, lt=1 << 32)] | None = None
    """Default: computed from compression."""
    compression: Rate | None = None
    """Number of weights per sketch cell. Default: 4."""

    @model_validator(mode="after")
    def _one_size(self) -> FetchSGD:
        if self.columns is not None and self.compression is not None:
            raise ValueError("only one of columns and compression")
        return self

    def check_task(self, task: TaskSettings, training: TrainingSettings) -> None:
        """Refuse counted steps under DP-SGD."""
        require_passes(self.steps, training)

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """Ask for whole passes or counted steps, and for the cells of the sketch."""
        fit = Demands.of_fit(self, training)
        return replace(fit, steps=self.steps or 0, cells=self.cells(values))

    def cells(self, size: int) -> int:
        """Return the number of cells in the sketch of this many weights, at least one a row."""
        if self.columns is not None:
            return self.rows * self.columns
        cells = size / (self.compression or COMPRESSION)
        return max(self.rows, math.ceil(min(cells, 2.0**62)))

    def columns_for(self, size: int) -> int:
        """Return the number of columns in the sketch of a model with this many weights."""
        cells = size / (self.compression or COMPRESSION)
        return self.columns or max(1, round(cells / self.rows))

    def moving(self, size: int) -> int:
        """Return k as a number of weights."""
        k = self.k if isinstance(self.k, int) else max(1, round(self.k * size))
        if k > size:
            raise SettingsError(
                f"algorithm.k moves {k} weights in a round, and only {size} are trained",
                fix=f"choose up to {size}, or a share from 0 to 1.0",
                field="algorithm.k",
            )
        return k


class HeteroFL(WholeModel):
    """Smaller tiers train narrower models; each weight is averaged over its owners."""

    name: Literal["heterofl"] = "heterofl"
    widths: dict[str, Fraction] | None = None
    """Tier -> fraction of the width. Default: 0.5, 0.75 and 1.0."""
    tiers: dict[str, Positive] | None = None
    """Tier -> depth at which the complete model is as large as the tier's."""
    shares: dict[str, Rate] | None = None
    """Tier -> fraction of the hospitals without a tier of their own. Default: equal."""
    steps: Positive | None = None
    """Local steps in each round, instead of epochs."""
    weights: Weights = "users"
    """Weight of a hospital in a mean: 1 (users), or its records, which stay private."""
    mix: Literal["tiers", "wide"] = "tiers"
    """wide: parts that too few hospitals own are not sent."""
    scaler: Scaled = "always"
    """training: as printed; narrow models are then evaluated without the scaler."""

    @model_validator(mode="after")
    def _one_of_two(self) -> HeteroFL:
        if self.widths is not None and self.tiers is not None:
            raise ValueError("only one of widths and tiers")
        if not (self.widths or self.tiers or (self.widths is None and self.tiers is None)):
            raise ValueError("at least one tier")
        return self

    def check_task(self, task: TaskSettings, training: TrainingSettings) -> None:
        """Refuse prompts, whose output layer is the table of the words' vectors."""
        if task.prompt is not None:
            raise SettingsError(
                "heterofl cuts the words' vectors, which a prompt also needs as its output layer",
                fix="remove task.prompt and task.label_words, or use inclusivefl",
                field="task.prompt",
            )

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """Ask for whole passes, or for counted steps."""
        return replace(Demands.of_fit(self, training), steps=self.steps or 0)
