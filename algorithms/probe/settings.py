"""Settings of the probe."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from secure_fl.algorithms.settings import Teaching
from secure_fl.errors import SettingsError
from secure_fl.settings import Positive, TaskSettings, TrainingSettings

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
