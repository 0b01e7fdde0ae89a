"""Problems of hospitals' records that owners should check before training.

A problem contains counts and places, never records. None of them stops a run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from secure_fl.data.examples import Example
from secure_fl.data.rows import named
from secure_fl.data.splits import (
    OURS,
    PARTS,
    UNLABELLED,
    Splits,
    digest_of_text,
    labels_in,
    patient,
    texts_of,
)
from secure_fl.settings import LABELLED, TaskSettings, TrainingSettings

Lengths = Callable[[Sequence[str]], Sequence[int]]  # the numbers of tokens of texts
Labels = Sequence[str] | None
Parts = Mapping[str, Sequence[Example]]
Found = Iterator[tuple[str, str]]  # problems and their fixes
RARE = 0.5  # of an equal share: models may never predict such a class
NEGATIVE = re.compile(
    r"(no|non|not|without)([-_ ].*)?|0|false|n|f|neg|negative|none|absent|normal|healthy|control",
    re.IGNORECASE,
)
MOST = 0.6  # share of the records; a class with more of them is seldom the positive one
MANY = 500  # labels from which a task is slow, and often has no classes at all
LIKE = 0.5  # share of a hospital's texts at another one: their files may be the same


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem to check."""

    party: str
    what: str
    fix: str


def problems(
    party: str,
    splits: Splits,
    task: TaskSettings,
    *,
    lengths: Lengths | None = None,
    longest: int = 0,
    weighed: bool = False,
) -> Iterator[Problem]:
    """List the problems of one hospital's records.

    `longest`: the maximum length in tokens. `weighed`: the settings decide about rare classes.
    """
    kind, labels = task.kind, task.labels
    parts = {part: getattr(splits, part) for part in PARTS}
    listed = [
        *_patients(parts),
        *_repeated(parts),
        *(_classes(parts, labels) if kind in LABELLED else ()),
        *(_many(parts, labels) if kind in LABELLED else ()),
        *(_rare(parts, labels) if kind in ("classification", "pair") and not weighed else ()),
        *_reversed(parts, task),
        *(_long(parts, lengths, longest) if lengths is not None else ()),
    ]
    yield from (Problem(party, what, fix) for what, fix in listed)


def weighed(task: TaskSettings, training: TrainingSettings) -> bool:
    """True if settings decide about rare classes; under DP-SGD no record may count more."""
    return bool(task.positive or training.class_weights or training.dp)


def alike(parties: Mapping[str, Splits]) -> Iterator[Problem]:
    """List hospitals with the same records, where one process sees all of them."""
    texts = {
        name: {digest_of_text(example) for part in PARTS for example in getattr(splits, part)}
        for name, splits in parties.items()
    }
    for a, b in combinations(texts, 2):
        shared = len(texts[a] & texts[b])
        if texts[a] == texts[b]:
            yield Problem(a, f"its records equal those of {b}", "give each its own files")
        elif shared >= LIKE * min(len(texts[a]), len(texts[b])):
            what = f"{shared} of its texts are also at {b}"
            yield Problem(a, what, "check that they have different files")


def _patients(parts: Parts) -> Found:
    of = {part: {patient(e) for e in found if "/" in e.id} for part, found in parts.items()}
    for a, b in combinations(PARTS, 2):
        if both := len(of[a] & of[b]):
            what = f"{both} patients are in both {a} and {b}"
            yield (
                what,
                "give dev and test as shares of the training file, which keeps patients together",
            )


def _repeated(parts: Parts) -> Found:
    digests = {part: Counter(map(digest_of_text, examples)) for part, examples in parts.items()}
    for part, counts in digests.items():
        if more := counts.total() - len(counts):
            yield f"{more} texts of {part} are repeated", "drop the repeated ones"
    for a, b in combinations(PARTS, 2):
        if both := len(digests[a].keys() & digests[b].keys()):
            what = f"{both} texts are in both {a} and {b}"
            yield what, "drop them from one: otherwise the model is tested on training texts"


def _classes(parts: Parts, labels: Labels) -> Found:
    for part, examples in parts.items():
        counts = counted_labels(examples)
        if counts[UNLABELLED]:
            yield f"{counts[UNLABELLED]} records of {part} have no label", "label or remove them"
        for name in OURS:
            del counts[name]
        if labels is None or not examples:
            continue
        if other := set(counts) - set(labels):
            what = f"{sum(counts[name] for name in other)} labels of {part} are not in the plan"
            fix = f"correct them (task.labels: {named(labels)}), or add theirs to task.labels"
            yield what, f"{fix}; secure-fl data describe FILE lists them"
        if lacking := [name for name in labels if not counts[name] and name != "O"]:
            what = f"no record of {part} has the label {named(lacking)}"
            yield what, "scores of this class will mean nothing here; check the export"


def _many(parts: Parts, labels: Labels) -> Found:
    known = counted_labels(parts["train"]).keys() - {*OURS} if labels is None else labels
    if (found := many_labels(len(known))) is not None:
        yield found


def many_labels(count: int) -> tuple[str, str] | None:
    """Describe so many labels that a round may take minutes, and a fix."""
    if count < MANY:
        return None
    return (
        f"there are {count:,} labels, each with its own row of the trained and summed values: a "
        "round can take minutes, without a sign of progress",
        "check that the column of labels has classes, and not texts or identifiers; for numbers, "
        'set task.kind = "regression"',
    )


def _rare(parts: Parts, labels: Labels) -> Found:
    counts = counted_labels(parts["train"])
    for name in labels or ():
        if 0 < counts[name] < RARE * counts.total() / len(labels or ()):
            yield (
                f"{counts[name]} of {counts.total()} training records have the label {name}",
                "set task.positive to the positive class, so that all classes count alike",
            )


def _reversed(parts: Parts, task: TaskSettings) -> Found:
    counts = counted_labels(parts["train"])
    labels = tuple(sorted(counts)) if task.labels is None else task.labels
    if (found := reversed_class(task, labels, counts)) is not None:
        yield found


def _long(parts: Parts, lengths: Lengths, longest: int) -> Found:
    for part, examples in parts.items():
        counts = lengths([" ".join(texts_of(example)) for example in examples]) if examples else ()
        if cut := sum(count > longest for count in counts):
            what = f"{cut} of {len(examples)} texts of {part} are cut after {longest} tokens"
            yield what, f"raise task.max_length or task.windows; the longest has {max(counts)}"


def reversed_class(
    task: TaskSettings, labels: Labels, counts: Mapping[str, int] | None = None
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


def counted_labels(examples: Iterable[Example]) -> Counter[str]:
    """Count the labels of records."""
    return Counter(label for example in examples for label in labels_in(example))
