"""Check of the positive class: precision, recall and F1 are scores of one class."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from secure_fl.data.examples import Example
from secure_fl.data.splits import labels_in
from secure_fl.settings import TaskSettings

NEGATIVE = re.compile(
    r"(no|non|not|without)([-_ ].*)?|0|false|n|f|neg|negative|none|absent|normal|healthy|control",
    re.IGNORECASE,
)
MOST = 0.6  # share of the records; a class with more of them is seldom the wanted one


def reversed_class(
    task: TaskSettings, labels: Sequence[str] | None, counts: Mapping[str, int] | None = None
) -> tuple[str, str] | None:
    """Return a problem and its fix if the default positive class looks like the negative one.

    `labels`: of the task, in their order. `counts`: records by label, if they are known.
    """
    if task.positive is not None or task.kind not in ("classification", "pair"):
        return None
    if labels is None or len(labels) != 2:
        return None
    other, last = labels
    share = (counts or {}).get(last, 0) / max(sum((counts or {}).values()), 1)
    if NEGATIVE.fullmatch(last) and not NEGATIVE.fullmatch(other):
        why = "the last label"
    elif share > MOST and not NEGATIVE.fullmatch(other):
        why = f"the last label, with {100 * share:.0f} % of the records"
    else:
        return None
    return (
        f"precision, recall and F1 are scores of {last!r}: {why}",
        f'to score {other!r}, set task.positive = "{other}" (its F1 becomes the main score, and '
        f'classes count alike in training), or list it last: labels = ["{last}", "{other}"]',
    )


def counted_labels(examples: Iterable[Example]) -> dict[str, int]:
    """Count the labels of records."""
    counts: dict[str, int] = {}
    for example in examples:
        for label in labels_in(example):
            counts[label] = counts.get(label, 0) + 1
    return counts
