"""Settings of FedAvg and its relatives, of a probe, and those that public records share."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from secure_fl.algorithms.base import Demands, WholeModel
from secure_fl.errors import SettingsError
from secure_fl.settings import ModelSettings, Positive, TaskSettings, TrainingSettings

Rate = Annotated[float, Field(gt=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Counted = Literal["records", "parties"]  # what a mean counts
Targets = Literal["soft", "hard"]  # probabilities, or a vote for the likeliest class
OwnShares = Literal["kept", "divided"]


class Averaging(WholeModel):
    """Settings of FedAvg and its relatives: the parties' mean update moves the shared model."""

    proximal: Annotated[float, Field(ge=0)] = 0.0
    """μ of FedProx: each step also moves by -η·μ·(w - wₜ), towards the shared model."""
    average: Decay = 0.0
    """Decay of a moving average of the rounds' models (EMA), which is scored and saved. 0: none."""

    def check_model(self, model: ModelSettings, shared: ModelSettings) -> None:
        """Refuse exact sums of adapters with settings that they do not support."""
        exact = model.adapter is not None and model.adapter.kind == "exact"
        for field in ("proximal", "average"):
            if exact and getattr(self, field):
                raise SettingsError(
                    f'adapters of the kind "exact" are trained without {field}',
                    fix=f'set algorithm.{field} = 0, or model.adapter.kind = "lora"',
                    field=f"algorithm.{field}",
                )


class FedAvg(Averaging):
    """Every party trains the shared model; the mean of their updates, by records, is applied."""

    name: Literal["fedavg"] = "fedavg"


class FedProx(Averaging):
    """FedAvg whose local steps are pulled towards the shared model."""

    name: Literal["fedprox"] = "fedprox"
    proximal: Rate = 1.0
    """μ: each step also moves by -η·μ·(w - wₜ), towards the shared model."""


class Scaffold(Averaging):
    """FedAvg whose local steps are corrected by control variates, which a second vector sums."""

    name: Literal["scaffold"] = "scaffold"
    server_learning_rate: Rate = 1.0
    """η_g."""

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """Ask for whole passes, and for sums of updates and of control variates."""
        return replace(Demands.of_fit(self, training), cells=2 * values)


class FedAvgM(Averaging):
    """FedAvg with momentum as the server's step, replicated at the parties."""

    name: Literal["fedavgm"] = "fedavgm"
    server_learning_rate: Rate = 1.0
    """η."""
    momentum: Decay = 0.5
    """β. The paper's 0.9 and more average ten rounds and more, the length of many runs."""


class FedExP(Averaging):
    """FedAvg whose server extrapolates: the more the updates differ, the longer its step."""

    name: Literal["fedexp"] = "fedexp"
    damping: Rate = 1e-3
    """ε, which bounds the step where the mean update is small."""


def require_classes(task: TaskSettings) -> None:
    """Refuse a task whose predictions are not one class per record."""
    if task.kind not in ("classification", "pair"):
        has = "several per record" if task.kind in ("multilabel", "ner") else "none"
        raise SettingsError(
            f"this algorithm distils predictions of classes, and {task.kind} has {has}",
            fix='set task.kind = "classification" or "pair", or choose another algorithm',
            field="task.kind",
        )


def require_passes(steps: int | None, training: TrainingSettings) -> None:
    """Refuse a number of local steps under DP-SGD."""
    if steps is not None and training.dp is not None:
        raise SettingsError(
            "DP-SGD is accounted for in whole passes over the records",
            fix="remove algorithm.steps, and set algorithm.epochs",
            field="algorithm.steps",
        )


class Teaching(WholeModel):
    """Settings of an algorithm whose finished model can teach a student on public texts."""

    student_layers: Positive | None = None
    """Layers of a second, smaller model, which every hospital distils from the finished model on
    the public texts. It costs no ε and is not sent. Default: none."""
    student_epochs: Positive = 10
    """Passes of the student over the public texts."""

    def check_task(self, task: TaskSettings, training: TrainingSettings) -> None:
        """Refuse a student of a task without classes."""
        if self.student_layers is not None:
            require_classes(task)

    def student(self, model: ModelSettings) -> ModelSettings | None:
        """Return the student: the first layers of the shared model, without adapters."""
        if self.student_layers is None:
            return None
        return model.model_copy(update={"layers": self.student_layers, "adapter": None})

    def trains(self, model: ModelSettings) -> tuple[ModelSettings, ...]:
        """Name the shared model, and the student if there is one."""
        student = self.student(model)
        return (model,) if student is None else (model, student)

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """Ask for the student's passes, too."""
        asked = super().demands(training, values)
        return asked if self.student_layers is None else replace(asked, passes=self.student_epochs)


class FedSGD(Teaching):
    """Every step is on a sample of the records of all parties, by one sum."""

    name: Literal["fedsgd"] = "fedsgd"
    rounds: Positive = 60
    """Number of steps, each with one exchange."""
    epochs: Literal[1] = 1
    sample_rate: Fraction = 0.1
    """Chance of a record to be in a step. 1: all records in every step."""

    def check_task(self, task: TaskSettings, training: TrainingSettings) -> None:
        """Refuse settings of local steps, which would change nothing: each step is Adam's."""
        super().check_task(task, training)
        unused: dict[str, Any] = {"optimizer": "adamw"}
        if self.student_layers is None:
            unused |= {"weight_decay": 0.0, "max_grad_norm": None}
        for field, without in unused.items():
            given, default = getattr(training, field), TrainingSettings.model_fields[field].default
            if given not in (without, default):
                raise SettingsError(
                    f"fedsgd steps by Adam, without weight decay and on gradients that only "
                    f"training.dp bounds; {field} = {given} would change nothing",
                    fix=f"remove training.{field}, or use fedavg",
                    field=f"training.{field}",
                )

    @property
    def step_rate(self) -> float:
        """The sample rate: each round is one step."""
        return self.sample_rate


class AdaptiveServer(Averaging):
    """Settings of a server's step that is scaled by the sizes of earlier updates."""

    server_learning_rate: Rate | None = None
    """η. Default: 15 times the members' step."""
    beta1: Decay = 0.0
    """β₁. The paper's 0.9 averages about ten rounds, which is the length of many runs."""
    beta2: Decay = 0.99
    """β₂."""
    tau: Rate | None = None
    """τ, the degree of adaptivity. Default: η/2."""


class FedAdam(AdaptiveServer):
    """FedAvg with Adam as the server's step, replicated at the parties."""

    name: Literal["fedadam"] = "fedadam"


class FedYogi(AdaptiveServer):
    """FedAvg with Yogi as the server's step, replicated at the parties."""

    name: Literal["fedyogi"] = "fedyogi"


class PublicDistillation(WholeModel):
    """Parties predict public records; the host opens the mean and teaches its central model."""

    epochs: Positive = 3
    """Local passes over the records in each round, E in FedID. More passes send no more data."""
    distill_epochs: Positive = 1
    """Passes over the public records in each round."""
    counted: Counted = "records"
    """Weight of a hospital in the mean: its records, or 1. With noise only "parties"."""
    sample: Fraction = 1.0
    """Fraction ε of the hospitals that take part in a round."""
    labelled: bool = True
    """The host also trains on its labelled records."""
    own_shares: OwnShares | None = "kept"
    """Class shares of a hospital in its predictions. divided: it predicts as if it had equally many
    records of each class. "none": divided, but kept under DP-SGD."""
    host_learning_rate: Rate | None = None
    """η of the central model. Default: training.learning_rate."""
    distill_learning_rate: Rate | None = None
    """ηᵏ of Eq. 15. Default: that of Eq. 4, as printed."""

    @model_validator(mode="after")
    def _counts_stay_private(self) -> Self:
        if self.sample < 1 and self.counted == "records":
            raise ValueError(
                'counted = "parties" where sample is below 1: sums of records over different draws '
                "of parties reveal how many each hospital has"
            )
        return self

    def check_task(self, task: TaskSettings, training: TrainingSettings) -> None:
        """Refuse a task without classes."""
        require_classes(task)

    @property
    def balances(self) -> bool:
        """True unless own shares are divided out, since balanced classes have equal shares."""
        return self.own_shares == "kept"

    def demands(self, training: TrainingSettings, values: int) -> Demands:
        """Ask for passes over local and public records, in the batches of [training]."""
        return replace(
            Demands.of_fit(self, training),
            passes=max(self.epochs, self.distill_epochs),
            batch=training.batch_size,
            drawn=self.sample,
        )

    @property
    def exchanging(self) -> int:
        """The number of rounds with an exchange."""
        return self.rounds

    def releases(self, public: int, batch: int) -> tuple[int, int]:
        """Count one sum over all public records in each round with an exchange."""
        return public, self.exchanging


def batches_together(batches: int, most: int | None) -> int:
    """Return the largest size, up to `most`, of equal groups that leave no batch out."""
    return max(n for n in range(1, min(most or batches, batches) + 1) if batches % n == 0)


class PersonalDistillation(PublicDistillation):
    """Every member keeps a model of its own for the whole run, and all members teach each other.

    A fresh model gives all records the same answer for its first hundred steps. A member that
    learns this answer from all others, as often as it learns from its own records, never recovers.
    """

    alone: Annotated[int, Field(ge=0)] | None = None
    """Rounds before the first exchange, in which members train on their own records only. Default:
    half of the rounds if there are four or more. The papers have no such rounds."""

    @model_validator(mode="after")
    def _teaches_at_last(self) -> Self:
        if not self.exchanging > 0:
            raise ValueError("alone below rounds: no round would have an exchange")
        return self

    @property
    def exchanging(self) -> int:
        """The number of rounds after the first ones, in which members train alone."""
        default = self.rounds // 2 if self.rounds >= 4 else 0
        return self.rounds - (default if self.alone is None else self.alone)

    def teaches(self, round: int) -> bool:
        """Return True if this round has an exchange."""
        return round > self.rounds - self.exchanging


STEPS = 60  # default rounds of a logistic fit


class Probe(Teaching):
    """A linear model on fixed features of a frozen encoder."""

    name: Literal["probe"] = "probe"
    fit: Literal["ridge", "logistic"] = "ridge"
    """ridge: one exchange; the result does not depend on how records are spread over hospitals.
    logistic: one exchange for each step of gradient descent; it can run under DP-SGD."""
    rounds: Positive = 1
    """Number of exchanges: 1 with ridge. Default with logistic: 60 steps over all records."""
    epochs: Literal[1] = 1
    components: Positive = 256
    """Directions of public texts to which features are reduced, by PCA. Without public texts,
    features are neither centred nor reduced."""

    @model_validator(mode="before")
    @classmethod
    def _steps_of_logistic(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("fit") == "logistic":
            return {"rounds": STEPS} | given
        return given

    @model_validator(mode="after")
    def _one_exchange_of_ridge(self) -> Probe:
        if self.fit == "ridge" and self.rounds != 1:
            raise ValueError('rounds = 1 with fit = "ridge", or fit = "logistic"')
        return self

    def check_task(self, task: TaskSettings, training: TrainingSettings) -> None:
        """Refuse tasks that a linear model on fixed features cannot learn."""
        super().check_task(task, training)
        kind = task.kind
        if kind in ("ranking", "completion") or (kind == "regression" and self.fit != "ridge"):
            raise SettingsError(
                f'a probe with fit = "{self.fit}" cannot learn a task of {kind}',
                fix="classes, several labels and entities work; regression works with "
                'fit = "ridge"',
                field="task.kind",
            )
        if task.prompt is not None:
            raise SettingsError(
                "a probe trains a head on fixed features, and a prompt has no head of its own",
                fix="remove task.prompt and task.label_words",
                field="task.prompt",
            )
        if training.dp is not None and (self.fit == "ridge" or kind == "ner"):
            raise SettingsError(
                "DP-SGD covers a probe's steps of gradient descent on texts, not its moments and "
                "not words",
                fix='set algorithm.fit = "logistic" and a task of texts, or remove training.dp',
                field="training.dp",
            )

    @property
    def step_rate(self) -> float:
        """1: gradients of fixed features cost nothing, and need no sampling."""
        return 1.0
