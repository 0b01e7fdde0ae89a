"""Settings of FedKD. Equations, figures, lines and tables are those of its paper.

Wu, Wu, Lyu, Huang, Xie: Communication-efficient federated learning via knowledge distillation.
Nature Communications 13, 2032, 2022, arXiv 2108.13323.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    """The student is the first layers of its teacher, if the teacher starts as the shared model.
    false: student and teacher are two networks, as printed."""
    mutual: bool = True
    """The teacher learns from the student too. false: it learns from the labels only (Fig. 2)."""
    soft_labels: bool = True
    """Student and teacher learn from each other's predictions, Eqs. 3 and 4. false: they do not
    (Fig. 3: without mutual distillation loss)."""
    hidden: bool = True
    """Hidden states and attention maps of two networks become alike, Eq. 5. false: there is no such
    loss (Fig. 3: without hidden loss). One network has none in any case."""
    adaptive: Literal["batch", "sample", "none"] = "batch"
    """Eqs. 3-5 are divided by the sum of both models' losses on the labels: its mean over the
    batch, its value for each record (sample), or not at all (none)."""
    transform: bool = True
    """The linear map Wʰ of Eq. 5 is learned. false: it is the identity."""
    joint_loss: bool = False
    """As in the authors' code, both models have one loss, and each is trained through the other's
    outputs. false: a model takes the other's outputs as constants."""
    made_up: bool = False
    """The student also learns by Eq. 4 from made-up records. They are spans of the hospital's own
    records, with some words masked or replaced by other words of the same record."""

    @model_validator(mode="after")
    def _require_mutual(self) -> Self:
        if self.joint_loss and not self.mutual:
            raise ValueError(
                "joint_loss = true needs mutual = true, because one loss teaches both models: set "
                "mutual = true or joint_loss = false"
            )
        return self


class FedKD(Algorithm, Distillation):
    """Parties keep their teachers, or share their adapters; a small student is always shared."""

    name: Literal["fedkd"] = "fedkd"
    teachers: Teachers = "private"
    """private: as printed, teachers never leave their hospitals. shared: adapters and heads of
    teacher and student are summed, so all hospitals have the same teacher. personal: a teacher has
    two adapters; one is summed, the other stays at its hospital. The last two need [model.adapter],
    train two networks and use Eqs. 1, 2 and 4 only, whatever tied, mutual and hidden are."""
    student_layers: Positive = 2
    """Number of the student's layers, which are the first layers of the shared model."""
    student_rank: Positive = 8
    """Rank of the student's adapters if teachers are shared or personal."""
    teacher_learning_rate: Rate | None = None
    """Default: the student's rate, training.learning_rate, or a quarter of it if teachers are
    private. The paper's Table 6 has 1/5 to 1/2.5 of the student's rate."""
    factors: FactorMode = "joint"
    """joint: hospitals compute the factors of the summed update, from sealed sums. per_party: as
    printed, every hospital sees the factors of every other. none: updates are summed whole."""
    energy_start: Fraction = 0.95
    """Share of an update's energy that its factors keep in the first round: T_start of Eq. 9."""
    energy_end: Fraction = 0.98
    """Share of an update's energy that its factors keep in the last round: T_end of Eq. 9."""
    max_rank: Positive | None = None
    """Maximum rank of any matrix. Default: the rank at which factors are still smaller."""
    exchange: Literal["epoch", "gradient"] = "epoch"
    """epoch: students' updates are summed once a round. gradient: gradients are summed at every
    step (Alg. 1)."""
    steps: Positive = 10
    """Steps of a round with exchange = "gradient"."""
    mean: Literal["records", "parties"] = "records"
    """records: a hospital's weight is its number of records. parties: equal weights, g/N in line
    22."""

    @model_validator(mode="after")
    def _require_rising_energy(self) -> Self:
        if self.energy_start > self.energy_end:
            raise ValueError(
                f"energy_start = {self.energy_start} is above energy_end = {self.energy_end}, and "
                "precision grows with training: lower the first or raise the second"
            )
        return self

    def used_only_with(self) -> Mapping[str, tuple[bool, str]]:
        """List the fields of the exchange of factors, of steps and of teachers."""
        private, factors = self.teachers == "private", self.factors != "none"
        return {
            'teachers = "private"': (
                private,
                "factors energy_start energy_end exchange joint_loss max_rank transform",
            ),
            'teachers = "shared" or "personal"': (not private, "student_rank"),
            'factors = "joint" or "per_party"': (factors, "energy_start energy_end max_rank"),
            'exchange = "gradient"': (self.exchange == "gradient", "steps"),
        }

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """Ask for one exchange in each round, or one at each of its steps."""
        demands = Demands.of_fit(self, training)
        if self.exchange == "epoch":
            return demands
        return replace(demands, exchanges=self.rounds * self.steps, steps=self.steps)

    def trains(self, model: ModelSettings) -> tuple[ModelSettings, ...]:
        """Name both models, first the larger one of those that are sent."""
        teacher, student = self.teacher(model), self.student(model)
        return (student, teacher) if self.teachers == "private" else (teacher, student)

    def check_task(self, task: TaskSettings, training: TrainingSettings) -> None:
        """Refuse losses and exchanges that DP-SGD does not cover."""
        if training.dp is None:
            return
        uncovered = (
            (self.adaptive == "batch", "adaptive", '"sample" (or "none")',
             "adaptive weights of a whole batch depend on several records, so DP-SGD has no valid "
             "ε"),
            (self.exchange == "gradient", "exchange", '"epoch"',
             "DP-SGD accounts for passes over the records, not for single gradients"),
            (self.made_up, "made_up", "false",
             "made-up records are drawn at random, so DP-SGD cannot check the gradient of a "
             "record"),
        )  # fmt: skip
        for refused, field, allowed, problem in uncovered:
            if refused:
                raise SettingsError(
                    problem,
                    fix=f"set algorithm.{field} = {allowed} with training.dp",
                    field=f"algorithm.{field}",
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
    def undoable_label(self) -> str | None:
        """The teacher's label, "", if teachers are summed; None: the student's, as registered."""
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
