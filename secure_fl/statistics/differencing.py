"""Differencing attack: random questions, whose answers are subtracted down to single patients.

It asks how many patients satisfy random conditions, and solves for the groups that all conditions
tell apart. With exact answers to all of them it finds every group; it is the positive control of
the rules, and what they are measured by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from secure_fl.statistics.answers import Answer
from secure_fl.statistics.questions import Count, Question

Fields = Mapping[str, Sequence[str]]
Ask = Callable[[Sequence[Question]], Sequence[Answer]]


def random_questions(fields: Fields, count: int, rng: np.random.Generator) -> list[Question]:
    """Each with a random set of values of each field."""
    questions: list[Question] = []
    for number in range(count):
        where = {name: _some(values, rng) for name, values in fields.items()}
        questions.append(Count(name=f"q{number}", kind="count", where=where))
    return questions


def groups_found(
    fields: Fields, questions: Sequence[Question], answers: Sequence[Answer], few: int
) -> dict[tuple[str, ...], int]:
    """Groups of 1 to `few` patients that the answers tell of, with their sizes, by least squares.

    A group is a combination of values; it is found if its size follows from the answers.
    """
    groups = list(product(*fields.values()))
    known = [
        (question, answer.total)
        for question, answer in zip(questions, answers, strict=True)
        if answer.total is not None
    ]
    if not known:
        return {}
    told = np.array([[_in(question, fields, group) for group in groups] for question, _ in known])
    sizes = np.array([total for _, total in known], float)
    found, *_ = np.linalg.lstsq(told.astype(float), sizes, rcond=None)
    follows = _determined(told.astype(float))
    return {
        group: round(size)
        for group, size, sure in zip(groups, found, follows, strict=True)
        if sure and 1 <= round(size) <= few
    }


def _determined(told: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which unknowns have one value only: their unit vectors lie in the row space."""
    _, values, right = np.linalg.svd(told, full_matrices=True)
    rank = int((values > 1e-9 * values.max(initial=1.0)).sum())
    return np.asarray(np.abs(right[rank:]).max(0, initial=0.0) < 1e-9)


def _some(values: Sequence[str], rng: np.random.Generator) -> tuple[str, ...]:
    chosen = [value for value in values if rng.random() < 0.5]
    return tuple(chosen or [values[int(rng.integers(len(values)))]])


def _in(question: Question, fields: Fields, group: Sequence[str]) -> bool:
    return all(value in question.where[name] for name, value in zip(fields, group, strict=True))
