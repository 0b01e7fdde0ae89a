"""Settings of FedKD."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Self

from pydantic import model_validator

from secure_fl.algorithms.base import Algorithm, Demands
from secure_fl.algorithms.settings import Fraction, Rate
from secure_fl.errors import SettingsError
from secure_fl.settings import ModelSettings, Positive, Section, TaskSettings, TrainingSettings

FactorMode = Literal["joint", "per_party", "none"]
Teachers = Literal["private", "personal", "shared"]


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
    made_up: bool = False
    """Eq. 4 also on made-up records: spans of the hospital's own records, with some words masked or
    replaced by other words of the same record."""

    @model_validator(mode="after")
    def _joint_is_mutual(self) -> Self:
        if self.joint_loss and not self.mutual:
            raise ValueError("joint_loss only with mutual: one loss for both models teaches both")
        return self


class FedKD(Algorithm, Distillation):
    """Parties keep their teachers, or share their adapters; a small student is always shared."""

    name: Literal["fedkd"] = "fedkd"
    teachers: Teachers = "private"
    """private: as printed, teachers never leave their hospitals. shared: adapters and heads of
    teacher and student are summed, so all hospitals have the same teacher. personal: a teacher has
    two adapters; one is summed, the other stays at its hospital. The last two need [model.adapter],
    train two networks and use Eqs. 1, 2 and 4 only."""
    student_layers: Positive = 2
    """The student is the first layers of the shared model."""
    student_rank: Positive = 8
    """Rank of the student's adapters, unless teachers are private."""
    teacher_learning_rate: Rate | None = None
    """Default: the student's, training.learning_rate; a quarter of it if teachers are private. The
    paper's Table 6 has 1/5 to 1/2.5."""
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

    @model_validator(mode="after")
    def _adapters_once_a_round(self) -> FedKD:
        printed = {"factors": "per_party", "exchange": "gradient", "joint_loss": True}
        given = [name for name, value in printed.items() if getattr(self, name) == value]
        given += ["max_rank"] * (self.max_rank is not None)
        if given and self.teachers != "private":
            raise ValueError(
                f'teachers = "private" with {given[0]}: otherwise adapters are sent, once a '
                "round, without factors"
            )
        return self

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """Ask for one exchange in each round, or one at each of its steps."""
        per_round = self.steps if self.exchange == "gradient" else 1
        fit = Demands.of_fit(self, training)
        return replace(fit, exchanges=self.rounds * per_round, steps=self.steps)

    def trains(self, model: ModelSettings) -> tuple[ModelSettings, ...]:
        """Name both models, first the larger one of those that are sent."""
        models = (self.teacher(model), self.student(model))
        return models if self.teachers != "private" else models[::-1]

    def check_task(self, task: TaskSettings, training: TrainingSettings) -> None:
        """Refuse losses and exchanges that DP-SGD does not cover."""
        refused = {
            'adaptive = "sample" (or "none")': (
                self.adaptive == "batch",
                "adaptive weights of a whole batch depend on several records, so DP-SGD has no "
                "valid ε",
            ),
            'exchange = "epoch"': (
                self.exchange == "gradient",
                "DP-SGD accounts for passes over the records, not for single gradients",
            ),
            "made_up = false": (
                self.made_up,
                "made-up records are drawn at random, so DP-SGD cannot check the gradient of a "
                "record",
            ),
        }
        for fix, (found, problem) in refused.items():
            if training.dp is not None and found:
                raise SettingsError(
                    problem,
                    fix=f"set algorithm.{fix} with training.dp",
                    field=f"algorithm.{fix.split()[0]}",
                )

    def check_model(self, model: ModelSettings, shared: ModelSettings) -> None:
        """Refuse shared teachers without adapters, or of another checkpoint."""
        if self.teachers == "private":
            return
        if shared.adapter is None:
            raise SettingsError(
                f'algorithm.teachers = "{self.teachers}" sums adapters, and the model has none',
                fix='add [model.adapter] with kind = "lora", rank = 3 and targets = "linear"; or '
                'set algorithm.teachers = "private"',
                field="model.adapter",
            )
        if model != shared:
            raise SettingsError(
                f'algorithm.teachers = "{self.teachers}" sums adapters of one checkpoint, and this '
                "hospital has another model",
                fix='use the shared model here too, or set algorithm.teachers = "private"',
                field="model",
            )

    @property
    def judged(self) -> str | None:
        """The teacher, if sums move it, and not only the student."""
        return None if self.teachers == "private" else ""

    def student(self, model: ModelSettings) -> ModelSettings:
        """Return the student: the first layers of the shared model."""
        student = model.model_copy(update={"layers": self.student_layers})
        return student if self.teachers == "private" else with_rank(student, self.student_rank)

    def teacher(self, model: ModelSettings) -> ModelSettings:
        """Return the teacher. Two adapters of rank r are halves of one of rank 2r."""
        if self.teachers != "personal" or model.adapter is None:
            return model
        return with_rank(model, 2 * model.adapter.rank)

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


def with_rank(model: ModelSettings, rank: int) -> ModelSettings:
    """Return a model with adapters of another rank; its output keeps its scale, alpha/r."""
    adapter = model.adapter
    if adapter is None:
        return model
    alpha = None if adapter.alpha is None else adapter.alpha * rank / adapter.rank
    return model.model_copy(
        update={"adapter": adapter.model_copy(update={"rank": rank, "alpha": alpha})}
    )
