"""Tasks: classes of texts and pairs, several labels, scores, entities, ranking, completion."""

from __future__ import annotations

from typing import Any

from secure_fl.data.rows import named, shown
from secure_fl.errors import DataError, SettingsError
from secure_fl.learning.tasks.batches import Batch
from secure_fl.learning.tasks.classification import Classification, class_labels
from secure_fl.learning.tasks.completion import Completion
from secure_fl.learning.tasks.multilabel import MultiLabel, occurring_labels
from secure_fl.learning.tasks.ner import NER, entity_labels, tag_labels
from secure_fl.learning.tasks.prompts import PromptClassification
from secure_fl.learning.tasks.ranking import Ranking
from secure_fl.learning.tasks.regression import Regression
from secure_fl.learning.tasks.task import READING, Encoded, Examples, Task
from secure_fl.settings import Kind, TaskSettings

__all__ = [
    "KINDS",
    "Batch",
    "Encoded",
    "Task",
    "labels_of",
    "make_task",
    "settings_of",
    "task_from",
]

KINDS: dict[Kind, type[Task]] = {
    "classification": Classification,
    "pair": Classification,
    "multilabel": MultiLabel,
    "regression": Regression,
    "ner": NER,
    "ranking": Ranking,
    "completion": Completion,
}


def labels_of(kind: Kind, examples: Examples) -> tuple[str, ...]:
    """The labels that occur in the data, in the order of their ids (NER: "O" first)."""
    if kind in ("classification", "pair"):
        return class_labels(examples)
    if kind == "multilabel":
        return occurring_labels(examples)
    return entity_labels(examples) if kind == "ner" else ()


def make_task(settings: TaskSettings, train_examples: Examples = ()) -> Task:
    """The task with its declared labels, or with those that occur in the training data.

    Parties of a federation should declare labels, because those in their data may differ.
    """
    kind, reading = settings.kind, {name: getattr(settings, name) for name in READING}
    if kind in ("regression", "ranking", "completion"):
        if settings.declared is not None or settings.positive is not None:
            raise SettingsError(
                f"a {kind} task has no labels",
                field="task.labels",
                fix="remove labels and positive",
            )
        if kind == "regression":
            return Regression(kind, **reading, score_range=settings.score_range)
        return KINDS[kind](kind=kind, **reading)
    labels = _distinct_labels(settings, train_examples)
    one_class = kind in ("classification", "pair")
    if settings.positive is not None and (not one_class or settings.positive not in labels):
        raise SettingsError(
            "the positive class is not one of the labels",
            field="task.positive",
            fix=f"choose one of: {named(labels)}" if one_class else "remove it",
        )
    if settings.prompt is not None:
        words = tuple((settings.label_words or {})[label] for label in labels)
        reading |= {"prompt": settings.prompt, "label_words": words}
        return PromptClassification(kind, labels, positive=settings.positive, **reading)
    return KINDS[kind](kind, labels, positive=settings.positive, **reading)


def _distinct_labels(settings: TaskSettings, examples: Examples) -> tuple[str, ...]:
    """Return the declared labels, or those of the data; refuse repeated ones, and one alone."""
    kind, labels = settings.kind, settings.declared
    if labels is None:
        labels = labels_of(kind, examples)
    elif kind == "ner":
        labels = tag_labels(labels)
    if repeated := [label for label in dict.fromkeys(labels) if labels.count(label) > 1]:
        raise SettingsError(
            f"repeated labels: {named(repeated)}", field="task.labels", fix="name each label once"
        )
    if len(set(labels)) < 2:
        error = DataError if settings.labels is None else SettingsError
        raise error(
            f"found {named([*map(shown, labels)]) or 'no label'}; a {kind} task needs at least two "
            "labels (ner: one entity type)",
            field="task.labels",
            fix="declare the labels in [task] labels, equally for all parties",
        )
    return labels


def task_from(card: dict[str, Any]) -> Task:
    """The task of a saved model, from the fields of its card."""
    given = card | {"labels": tuple(card["labels"])}
    if "prompt" in given:
        words = given["label_words"]
        given["label_words"] = tuple(words[label] for label in given["labels"])
        return PromptClassification(**given)
    return KINDS[given["kind"]](**given)


def settings_of(task: Task) -> TaskSettings:
    """The settings of a task that a program made itself."""
    return TaskSettings(
        kind=task.kind,
        labels=task.labels or None,
        positive=task.positive,
        score_range=getattr(task, "score_range", None),
        **task.reading(),
    )
