"""Three hospitals that label words, each with types of its own."""

from __future__ import annotations

from typing import Any

from secure_fl import Federation, Silo, TaskSettings
from secure_fl.algorithms.base import Algorithm
from secure_fl.corpora import make
from secure_fl.testing.hospitals import small

HEAD = {"classifier.weight", "classifier.bias"}  # of a token classifier of transformers
NAMES = [f"hospital-{i}" for i in (1, 2, 3)]


def corpora(labels: Any = "own") -> list[Silo]:
    splits = make("ner", parties=3, seed=1, size=40, labels=labels)
    return [Silo(n, s.train, s.dev, s.test) for n, s in zip(NAMES, splits, strict=True)]


def ner(algorithm: Algorithm, mode: Any = "none", **options: Any) -> Federation:
    task = TaskSettings(kind="ner", max_length=48)
    return small(algorithm, mode, **{"silos": corpora(), "task": task} | options)
