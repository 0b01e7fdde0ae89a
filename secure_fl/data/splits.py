"""A silo's data: split for good, described for its owner, and written to be read again.

A record's side of a split depends on its id (or group) and the seed only: it stays there when
the file grows, when its rows move, and in every run. Files are read by `load`.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np

from secure_fl.data.examples import Example, Impression, Tagged, Text
from secure_fl.data.loaders import FORMATS, SUFFIXES, Columns, load
from secure_fl.data.rows import is_name, patient_of, shown
from secure_fl.errors import DataError
from secure_fl.files import replace_whole
from secure_fl.settings import Kind

__all__ = [
    "FORMATS",
    "SUFFIXES",
    "Columns",
    "Splits",
    "describe",
    "digest_of_text",
    "labels_in",
    "load",
    "split",
    "texts_of",
    "whose",
    "write",
]

PARTS = ("train", "dev", "test")
UNLABELLED, NO_ENTITY, CLICKED, PASSED = "(unlabelled)", "(no entity)", "clicked", "passed over"
OURS = (UNLABELLED, NO_ENTITY, CLICKED, PASSED)  # in the place of labels
BINS = 5  # of the scores in a description
LONGEST = 60  # characters of a label that is shown


@dataclass(frozen=True, slots=True)
class Splits:
    """What is learned from, what models are chosen by, and what results are reported on."""

    train: tuple[Example, ...]
    dev: tuple[Example, ...] = ()
    test: tuple[Example, ...] = ()


def split(
    examples: Sequence[Example],
    *,
    dev: float = 0.1,
    test: float = 0.1,
    seed: int,
    by: Callable[[Example], str] | None = None,
) -> Splits:
    """Deal examples to the three parts by the hash of their id, or of the group `by` names.

    Shares hold on average, not exactly. Group by patient where a patient has several records:
    else the test part holds patients that were trained on.
    """
    if not (dev >= 0 and test >= 0 and dev + test < 1):
        fix = "give shares from 0 to 1 that leave something to train on"
        raise DataError(f"dev {dev} and test {test} are no shares", fix=fix, field="split")
    parts: dict[str, list[Example]] = {part: [] for part in PARTS}
    for example in examples:
        place = _place(example.id if by is None else by(example), seed)
        part = "test" if place < test else "dev" if place < test + dev else "train"
        parts[part].append(example)
    for part, share in zip(PARTS, (1 - dev - test, dev, test), strict=True):
        if share > 0 and not parts[part]:
            what = f"none of {len(examples)} examples falls to a share of {share:.2g}"
            fix = "give more examples, a larger share (or 0 for none), or another seed"
            raise DataError(what, fix=fix, split=part)
    return Splits(**{part: tuple(found) for part, found in parts.items()})


def whose(example: Example) -> str:
    """Whose a record is: what splits go by where a column names patients."""
    return patient_of(example.id)


def _place(key: str, seed: int) -> float:
    digest = sha256(f"{seed}\n{key}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def write(examples: Sequence[Example], path: str | Path) -> None:
    """Write examples as JSON lines (gzipped by name) that `load` reads back unchanged.

    The file appears whole or not at all, and equal examples give equal bytes.
    """
    target = Path(path).expanduser()
    if not target.name.lower().endswith((".jsonl", ".jsonl.gz")):
        fix = "call it something.jsonl or something.jsonl.gz"
        raise DataError("examples are written as JSON lines only", fix=fix, file=target)
    if not examples:
        raise DataError("there are no examples to write", fix="check the data", file=target)
    try:
        rows = (json.dumps(asdict(e), allow_nan=False, ensure_ascii=False) for e in examples)
        content = "".join(f"{row}\n" for row in rows).encode()
    except ValueError:
        what = "a score is NaN or infinite, or a text holds half a surrogate pair"
        raise DataError(what, fix="clean the examples first", file=target) from None
    if target.name.lower().endswith(".gz"):
        content = gzip.compress(content, mtime=0)
    try:
        replace_whole(target, content, mode=0o600)  # records: for their owner alone
    except OSError as error:
        fix = "check that its folder is there, may be written to and has room"
        reason = error.strerror or "I/O error"
        raise DataError(f"cannot be written: {reason}", fix=fix, file=target) from None


def describe(splits: Splits, kind: Kind = "classification") -> dict[str, object]:
    """Count what an owner should look at before training: plain values, ready for JSON.

    Duplicates are exact ones of the texts, labels aside; shared ones let a test be passed
    from memory.
    """
    parts = {part: getattr(splits, part) for part in PARTS}
    digests = {part: Counter(map(digest_of_text, found)) for part, found in parts.items()}
    ids = {part: {example.id for example in found} for part, found in parts.items()}
    pairs = list(combinations(PARTS, 2))
    found = {
        **{part: _describe(found, kind) for part, found in parts.items()},
        "duplicate_texts": {part: found.total() - len(found) for part, found in digests.items()},
        "shared_texts": {f"{a}/{b}": len(digests[a].keys() & digests[b].keys()) for a, b in pairs},
        "shared_ids": {f"{a}/{b}": len(ids[a] & ids[b]) for a, b in pairs},
    }
    if all("/" in id for known in ids.values() for id in known):  # a column names patients
        own = {part: {patient_of(id) for id in known} for part, known in ids.items()}
        found["shared_patients"] = {f"{a}/{b}": len(own[a] & own[b]) for a, b in pairs}
    return found


def _describe(examples: Sequence[Example], kind: Kind) -> dict[str, object]:
    lengths = [sum(len(text.split()) for text in texts_of(example)) for example in examples]
    marks = ("min", "q25", "median", "q75", "q95", "max")
    quantiles = np.quantile(lengths, (0, 0.25, 0.5, 0.75, 0.95, 1)).tolist() if lengths else []
    return {
        "size": len(examples),
        "labels": {} if kind == "completion" else _histogram(examples),  # its texts are labels
        "words": dict(zip(marks, quantiles, strict=False)),
    }


def _histogram(examples: Sequence[Example]) -> dict[str, int]:
    # Classes, entities by type, bins of scores, or titles clicked and passed over.
    scores = [e.label for e in examples if isinstance(e, Text) and isinstance(e.label, float)]
    counts = Counter(label for example in examples for label in labels_in(example))
    names = [
        label for label in sorted(counts) if counts[label] > 1 or label in OURS or is_name(label)
    ]
    found = {label if len(label) <= LONGEST else shown(label): counts[label] for label in names}
    if once := len(counts) - len(names):  # a column of text, taken for labels by mistake
        found[f"({once} of one record each, withheld)"] = once
    if scores:
        sizes, edges = np.histogram(scores, bins=BINS)
        for (low, high), size in zip(pairwise(edges), sizes.tolist(), strict=True):
            span = f"{low:.4g} to {high:.4g}"
            found[span] = found.get(span, 0) + size
    return found


def labels_in(example: Example) -> list[str]:
    """Classes, entity types, clicks; or what stands in the place of a label."""
    if isinstance(example, Impression):
        return [CLICKED if click else PASSED for click in example.clicks]
    if isinstance(example, Tagged) and example.tags is not None:
        return [tag[2:] for tag in example.tags if tag[0] == "B"] or [NO_ENTITY]
    if isinstance(example, Text) and example.label is not None:
        return [example.label] if isinstance(example.label, str) else []
    return [UNLABELLED]


def texts_of(example: Example) -> tuple[str, ...]:
    """What a model reads of an example."""
    if isinstance(example, Text):
        return (example.text,) if example.pair is None else (example.text, example.pair)
    if isinstance(example, Tagged):
        return example.tokens
    return example.history + example.candidates


def digest_of_text(example: Example) -> bytes:
    """A digest of what a model reads, with its structure: moving a word makes a difference."""
    shape = len(example.history) if isinstance(example, Impression) else 0
    return sha256(json.dumps([shape, *texts_of(example)]).encode()).digest()
