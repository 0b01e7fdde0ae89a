"""A warning names the class of precision, recall and F1 where it looks like the negative one."""

from __future__ import annotations

import pytest

from secure_fl.data.examples import Text
from secure_fl.data.record_problems import counted_labels, problems, reversed_class
from secure_fl.data.splits import Splits
from secure_fl.settings import TaskSettings


@pytest.mark.parametrize(
    ("wanted", "last"),
    [
        ("ade", "no-ade"),
        ("yes", "no"),
        ("1", "0"),
        ("relevant", "not relevant"),
        ("ill", "Healthy"),
    ],
)
def test_a_negative_last_label_is_named_with_two_ways_to_score_the_other(
    wanted: str, last: str
) -> None:
    labels = (wanted, last)
    what, fix = reversed_class(TaskSettings(labels=labels), labels) or ("", "")
    assert f"scores of {last!r}" in what
    assert f'task.positive = "{wanted}"' in fix and f'labels = ["{last}", "{wanted}"]' in fix
    assert reversed_class(TaskSettings(labels=labels, positive=wanted), labels) is None
    assert reversed_class(TaskSettings(labels=labels, positive=last), labels) is None  # a choice
    assert reversed_class(TaskSettings(labels=labels[::-1]), labels[::-1]) is None


def test_the_larger_class_is_named_with_its_share() -> None:
    labels = ("fracture", "sprain")
    task = TaskSettings(labels=labels)
    what, _ = reversed_class(task, labels, {"fracture": 20, "sprain": 80}) or ("", "")
    assert "80 % of the records" in what
    assert reversed_class(task, labels, {"fracture": 45, "sprain": 55}) is None
    assert reversed_class(task, labels) is None


def test_tasks_without_one_scored_class_have_no_such_problem() -> None:
    assert reversed_class(TaskSettings(kind="ner", labels=("Drug", "No")), ("Drug", "No")) is None
    three = ("a", "b", "none")
    assert reversed_class(TaskSettings(labels=three), three) is None


def test_preflight_counts_the_labels_of_records_without_declared_ones() -> None:
    train = tuple(Text(str(n), f"note {n}", label="ade" if n % 4 else "no-ade") for n in range(8))
    assert counted_labels(train) == {"ade": 6, "no-ade": 2}
    found = problems("north", Splits(train), TaskSettings(), weighed=True)
    assert ["scores of 'no-ade'" in one.what for one in found] == [True]
