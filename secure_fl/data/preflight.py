"""What is wrong with hospitals' records before anybody trains: counts and places, never records.

Nothing here stops a run. It is what an owner should look at, and what can be done about it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from secure_fl.data.examples import Example
from secure_fl.data.splits import (
    OURS,
    PARTS,
    Splits,
    digest_of_text,
    labels_in,
    texts_of,
    whose,
)
from secure_fl.settings import Kind, TaskSettings, TrainingSettings

Lengths = Callable[[Sequence[str]], Sequence[int]]  # how many tokens texts have
RARE = 0.5  # of the share that a class had if all had the same: models may never answer it
LIKE = 0.5  # of a hospital's texts at another one: their files may be the same


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to look at."""

    party: str
    what: str
    fix: str


def problems(
    party: str,
    splits: Splits,
    kind: Kind,
    labels: Sequence[str] | None,
    *,
    by_patient: bool = False,
    lengths: Lengths | None = None,
    longest: int = 0,
    weighed: bool = False,
) -> Iterator[Problem]:
    """What one hospital's records have: `labels` are the plan's; `longest` text in tokens.

    `weighed`: whether it was said what a rare class counts.
    """
    parts = {part: getattr(splits, part) for part in PARTS}
    found = [
        *_patients(parts, by_patient),
        *_repeated(parts),
        *(_classes(parts, labels) if kind in ("classification", "pair", "ner") else ()),
        *(_rare(parts, labels) if kind in ("classification", "pair") and not weighed else ()),
        *(_long(parts, lengths, longest) if lengths is not None else ()),
    ]
    yield from (Problem(party, what, fix) for what, fix in found)


def weighed(task: TaskSettings, training: TrainingSettings) -> bool:
    """Whether it was said what a rare class counts; under DP-SGD no record may count more."""
    return bool(task.positive or training.class_weights or training.dp)


def alike(parties: Mapping[str, Splits]) -> Iterator[Problem]:
    """Hospitals that hold the same records, which one process may see."""
    texts = {
        name: {digest_of_text(example) for part in PARTS for example in getattr(splits, part)}
        for name, splits in parties.items()
    }
    for a, b in combinations(texts, 2):
        shared = len(texts[a] & texts[b])
        if texts[a] == texts[b]:
            yield Problem(a, f"its records are those of {b}", "give each its own files")
        elif shared >= LIKE * min(len(texts[a]), len(texts[b])):
            what = f"{shared} of its texts are at {b}, too"
            yield Problem(a, what, "check whether a file was given to both")


def _patients(
    parts: Mapping[str, Sequence[Example]], by_patient: bool
) -> Iterator[tuple[str, str]]:
    if not by_patient:
        return
    of = {part: {whose(example) for example in found} for part, found in parts.items()}
    for a, b in combinations(PARTS, 2):
        if both := len(of[a] & of[b]):
            what = f"{both} patients are in both {a} and {b}"
            yield (
                what,
                "give dev and test as shares of the training file: then they follow patients",
            )


def _repeated(parts: Mapping[str, Sequence[Example]]) -> Iterator[tuple[str, str]]:
    digests = {part: Counter(map(digest_of_text, found)) for part, found in parts.items()}
    for part, found in digests.items():
        if more := found.total() - len(found):
            yield f"{more} texts of {part} are there more than once", "drop the repeated ones"
    for a, b in combinations(PARTS, 2):
        if both := len(digests[a].keys() & digests[b].keys()):
            what = f"{both} texts are in both {a} and {b}"
            yield what, "drop them from one: else the test is passed from memory"


def _classes(
    parts: Mapping[str, Sequence[Example]], labels: Sequence[str] | None
) -> Iterator[tuple[str, str]]:
    for part, examples in parts.items():
        found = Counter(label for example in examples for label in labels_in(example))
        for name in (one for one in OURS if found.pop(one, 0) and part == "train"):
            if name == OURS[0]:
                yield "some training records have no label", "label them, or leave them out"
        if labels is None or not examples:
            continue
        if other := set(found) - set(labels):
            what = f"{sum(found[name] for name in other)} labels of {part} are none of the plan's"
            yield what, "correct them, or add theirs to task.labels: " + ", ".join(labels)
        if lacking := [name for name in labels if not found[name] and name != "O"]:
            what = f"no record of {part} has the label {', '.join(lacking)}"
            yield what, "scores of this class will say nothing here; check the export"


def _rare(
    parts: Mapping[str, Sequence[Example]], labels: Sequence[str] | None
) -> Iterator[tuple[str, str]]:
    found = Counter(label for example in parts["train"] for label in labels_in(example))
    for name in labels or ():
        if 0 < found[name] < RARE * found.total() / len(labels or ()):
            yield (
                f"{found[name]} of {found.total()} training records have the label {name}",
                "set task.positive to the class that is looked for: then all count alike",
            )


def _long(
    parts: Mapping[str, Sequence[Example]], lengths: Lengths, longest: int
) -> Iterator[tuple[str, str]]:
    for part, examples in parts.items():
        counts = lengths([" ".join(texts_of(example)) for example in examples]) if examples else ()
        if cut := sum(count > longest for count in counts):
            what = f"{cut} of {len(examples)} texts of {part} are cut after {longest} tokens"
            yield what, f"raise task.max_length; the longest has {max(counts)}"
