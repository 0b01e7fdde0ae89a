"""A result says so if its model answers one class, or guesses; counts come from real metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from secure_fl.display.learning_check import not_learned
from secure_fl.learning.tasks import Task, make_task
from secure_fl.settings import TaskSettings

TWO = TaskSettings(labels=("no", "yes"))
TAGS = TaskSettings(kind="ner", labels=("Drug",))


def result(settings: TaskSettings, counts: Mapping[str, Any], **changed: Any) -> dict[str, Any]:
    """A run's document with these counts over all test records, and their true intervals."""
    task: Task = make_task(settings)
    arrays = {name: np.asarray(vector) for name, vector in counts.items()}
    intervals = {name: list(pair) for name, pair in task.intervals(arrays).items()}
    last = {
        "round": 3,
        "counts": {"test": counts},
        "intervals": {"test": intervals},
        "pooled": {"test": task.rates(arrays)},
    }
    document = {
        "task": settings.model_dump(mode="json"),
        "model": {"freeze_embeddings": True, "adapter": None},
        "metrics": {"last": last, "best": last},
        "rounds": 3, "model_round": 3, "privacy": None, "noise": None, "parties": ["a", "b", "c"],
    }  # fmt: skip
    return document | changed


def crossed(first: list[int], second: list[int]) -> dict[str, Any]:
    return {"loss": [sum(first + second), 1.0], "truly no": first, "truly yes": second}


def test_a_model_of_one_answer_is_named_with_what_to_try() -> None:
    said = not_learned(result(TWO, crossed([120, 0], [40, 0]))) or ""
    assert "answers 'no' for all 160 test records" in said
    for advice in ("algorithm.rounds, now 3", "secure-fl tune", "freeze_embeddings = false"):
        assert advice in said
    assert "words occur" in said and "epsilon" not in said
    private = result(TWO, crossed([120, 0], [40, 0]), privacy={"budget": 1.0})
    assert "training.dp.epsilon" in (not_learned(private) or "")
    free = {"freeze_embeddings": False, "adapter": None}
    assert "freeze" not in (not_learned(result(TWO, crossed([9, 0], [4, 0]), model=free)) or "")


def test_the_one_answer_is_named_if_the_labels_are_not_in_alphabetical_order() -> None:
    """Sums arrive sorted by name; the columns have the order of `task.labels`."""
    backwards = TaskSettings(labels=("yes", "no"))
    counts = {"loss": [150, 1.0], "truly no": [0, 102], "truly yes": [0, 48]}
    assert "answers 'no' for all 150" in (not_learned(result(backwards, counts)) or "")


def test_a_model_below_a_known_probe_is_named_with_both_scores() -> None:
    learned = result(TWO, crossed([110, 10], [5, 35]), main_metric="accuracy", probe=0.94)
    assert not_learned(learned) is None  # no dev score to compare with
    learned["metrics"]["last"]["pooled"]["dev"] = {"accuracy": 0.9}
    said = not_learned(learned) or ""
    assert "below a probe" in said and "0.900" in said and "0.940" in said
    assert "secure-fl tune" in said
    for equal in ({"probe": 0.9}, {"probe": None}):
        assert not_learned(learned | equal) is None


def test_an_interval_around_guessing_is_named_and_a_real_model_is_not() -> None:
    said = not_learned(result(TWO, crossed([60, 60], [20, 22]))) or ""
    assert "95 % interval of its mcc" in said and "contains 0" in said
    assert not_learned(result(TWO, crossed([110, 10], [5, 35]))) is None


def test_many_classes_are_judged_by_outcomes() -> None:
    many = TaskSettings(labels=tuple(f"c{n:02}" for n in range(12)))
    counts: dict[str, Any] = {f"of c{n:02}": [0, 0, 10] for n in range(12)}
    counts |= {"loss": [120, 1.0], "of c03": [10, 110, 0]}
    assert "answers 'c03' for all 120" in (not_learned(result(many, counts)) or "")


@pytest.mark.parametrize(
    ("row", "said"),
    [([0, 0, 80], "finds no entity"), ([4, 9, 76], "finds 5 % of 80 entities"), ([50, 9, 30], "")],
)
def test_a_tagger_that_finds_little_is_named(row: list[int], said: str) -> None:
    found = not_learned(result(TAGS, {"loss": [90, 1.0], "of Drug": row})) or ""
    assert said in found and bool(said) == bool(found)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([[60, 60, 0], [0, 0, 20]], "not above 0.600, the best of the same labels for all"),
        ([[0, 0, 60], [0, 0, 20]], "0.000 to 0.000"),
        ([[55, 5, 5], [15, 2, 5]], ""),
    ],
)
def test_several_labels_are_compared_with_the_best_equal_answer(
    rows: list[list[int]], said: str
) -> None:
    """Half of 120 records have the first label. This label for all has a micro F1 of 0.6."""
    codes = TaskSettings(kind="multilabel", labels=("A", "B"))
    h, f, m = (float(sum(column)) for column in zip(*rows, strict=True))
    squares = [h, 0.0, 0.0, f, 0.0, m]  # every record has at most one outcome
    counts = {"loss": [120, 1.0], "of A": rows[0], "of B": rows[1]}
    counts |= {"outcomes": [h, f, m], "squares": squares}
    found = not_learned(result(codes, counts)) or ""
    assert said in found and bool(said) == bool(found)


def test_a_hospital_without_sums_is_judged_by_its_own_records_and_a_card_is_not() -> None:
    empty = {"round": 3, "counts": {}, "pooled": {}}
    own = {"party": "north", "round": 3, "split": "test", "counts": crossed([30, 0], [9, 0])}
    alone = result(TWO, crossed([1, 0], [0, 1])) | {
        "metrics": {"last": empty, "best": empty}, "parties": ["north"], "history": [own],
    }  # fmt: skip
    assert "for all 39 test records" in (not_learned(alone) or "")
    assert not_learned(alone, "", pooled=True) is None
