"""Settings of FedKD."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Self

from pydantic import model_validator

from secure_fl.algorithms.base import Algorithm, Demands, Entry, deferred
from secure_fl.algorithms.settings import ADAPTERS, Fraction, Rate
from secure_fl.settings import ModelSettings, Positive, Section, TrainingSettings

FactorMode = Literal["joint", "per_party", "none"]


class Distillation(Section):
    """The losses of adaptive mutual distillation; the defaults follow the paper."""

    tied: bool = True
    """The student is its teacher's first layers if that is the shared model. false: two networks,
    as printed."""
    mutual: bool = True
    """false: the teacher learns from the labels only (Fig. 2)."""
    soft_labels: bool = True
    """Eqs. 3 and 4 (Fig. 3: without mutual distillation loss)."""
    hidden: bool = True
    """Eq. 5 (Fig. 3: without hidden loss); between two networks only."""
    adaptive: Literal["batch", "sample", "none"] = "batch"
    """Scope of the losses that divide Eqs. 3-5."""
    transform: bool = True
    """Learn Wʰ of Eq. 5. false: the identity."""
    joint_loss: bool = False
    """As the authors' code: nothing detached, one loss for both models."""

    @model_validator(mode="after")
    def _joint_is_mutual(self) -> Self:
        if self.joint_loss and not self.mutual:
            raise ValueError("joint_loss only with mutual: one loss for both models teaches both")
        return self


class FedKD(Algorithm, Distillation):
    """Parties keep their teachers; a small student is shared as sealed low-rank factors."""

    name: Literal["fedkd"] = "fedkd"
    student_layers: Positive = 2
    """The student is the first layers of the shared model."""
    teacher_learning_rate: Rate | None = None
    """Default: a quarter of the student's, training.learning_rate. The paper's Table 6 has 1/5 to
    1/2.5."""
    factors: FactorMode = "joint"
    """per_party: as printed; every hospital then sees the factors of every other."""
    energy_start: Fraction = 0.95
    """T_start."""
    energy_end: Fraction = 0.98
    """T_end."""
    max_rank: Positive | None = None
    """Maximum rank of any matrix. Default: the rank at which factors are still smaller."""
    exchange: Literal["epoch", "gradient"] = "epoch"
    """epoch: once a round. gradient: at every step (Alg. 1)."""
    steps: Positive = 10
    """Steps of a round with exchange = "gradient"."""
    mean: Literal["records", "parties"] = "records"
    """parties: g/N, as line 22."""

    @model_validator(mode="after")
    def _rising(self) -> FedKD:
        if self.energy_start > self.energy_end:
            raise ValueError("energy_start up to energy_end: precision grows with training")
        return self

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """Ask for one exchange in each round, or one at each of its steps."""
        per_round = self.steps if self.exchange == "gradient" else 1
        fit = Demands.of_fit(self, training)
        return replace(fit, exchanges=self.rounds * per_round, steps=self.steps)

    def trains(self, model: ModelSettings) -> tuple[ModelSettings, ...]:
        """Name the student, which is sent, and the teacher, which stays local."""
        return (self.student(model), model)

    def student(self, model: ModelSettings) -> ModelSettings:
        """Return the student: the first layers of the shared model."""
        return model.model_copy(update={"layers": self.student_layers})

    @property
    def caveat(self) -> str:
        """A warning for the result if parties see each other's factors."""
        if self.factors != "per_party":
            return ""
        records = " and how many records it has" if self.mean == "records" else ""
        return (
            f"Every party sees the factors of every other party's update{records} "
            "(factors = per_party)."
        )

    @classmethod
    def entry(cls) -> Entry:
        return Entry(
            FedKD,
            deferred("secure_fl.algorithms.fedkd.algorithm:fedkd"),
            own_labels=True,
            dp_covers_all=True,
            undoable="student",
            adapters=ADAPTERS,
            summary="parties keep large teachers and send a small student in sealed factors",
        )
