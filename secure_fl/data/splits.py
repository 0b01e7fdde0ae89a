"""A silo's data: split, described for its owner, and written for `load`.

A record's split depends only on its id (or group) and the seed: it does not change when the file
grows, when rows move, or between runs.
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

__all__ = ["FORMATS", "SUFFIXES", "Columns", "load"]  # for importers of the other names here

PARTS = ("train", "dev", "test")
UNLABELLED, NO_LABEL, NO_ENTITY = "(unlabelled)", "(no label)", "(no entity)"
CLICKED, PASSED = "clicked", "passed over"
OURS = (UNLABELLED, NO_LABEL, NO_ENTITY, CLICKED, PASSED)  # used instead of labels
BINS = 5  # of the scores in a description
LONGEST = 60  # characters of a displayed label


@dataclass(frozen=True, slots=True)
class Splits:
    """Examples for training, for choosing models, and for reporting results."""

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
    """Assign examples to the three parts by the hash of their id, or of their group (`by`).

    Shares are met on average, not exactly. Group by patient if patients have several records, so
    that no patient is in both the training and the test part.
    """
    if not (dev >= 0 and test >= 0 and dev + test < 1):
        fix = "give shares from 0 to 1 with a sum below 1"
        raise DataError(f"dev {dev} and test {test} are not valid shares", fix=fix, field="split")
    parts: dict[str, list[Example]] = {part: [] for part in PARTS}
    for example in examples:
        place = _place(example.id if by is None else by(example), seed)
        part = "test" if place < test else "dev" if place < test + dev else "train"
        parts[part].append(example)
    for part, share in zip(PARTS, (1 - dev - test, dev, test), strict=True):
        if share > 0 and not parts[part]:
            what = f"a share of {share:.2g} contains none of the {len(examples)} examples"
            fix = "give more examples, a larger share (or 0 for none), or a file of its own records"
            raise DataError(what, fix=fix, split=part)
    return Splits(**{part: tuple(dealt) for part, dealt in parts.items()})


def patient(example: Example) -> str:
    """The patient of a record, by a column or by an id PATIENT/NOTE: the group for splits."""
    return patient_of(example.id)


def _place(key: str, seed: int) -> float:
    digest = sha256(f"{seed}\n{key}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def write(examples: Sequence[Example], path: str | Path) -> None:
    """Write examples as JSON lines (gzipped for .gz) that `load` reads back unchanged.

    The write is atomic, and equal examples give equal bytes.
    """
    target = Path(path).expanduser()
    if not target.name.lower().endswith((".jsonl", ".jsonl.gz")):
        fix = "use a name that ends in .jsonl or .jsonl.gz"
        raise DataError("examples are written as JSON lines only", fix=fix, file=target)
    if not examples:
        raise DataError("there are no examples to write", fix="check the data", file=target)
    try:
        rows = (json.dumps(asdict(e), allow_nan=False, ensure_ascii=False) for e in examples)
        content = "".join(f"{row}\n" for row in rows).encode()
    except ValueError:
        what = "a score is NaN or infinite, or a text contains half a surrogate pair"
        raise DataError(what, fix="clean the examples first", file=target) from None
    if target.name.lower().endswith(".gz"):
        content = gzip.compress(content, mtime=0)
    try:
        replace_whole(target, content, mode=0o600)  # records: for their owner alone
    except OSError as error:
        fix = "check that its folder exists, is writable and has space"
        reason = error.strerror or "I/O error"
        raise DataError(f"cannot be written: {reason}", fix=fix, file=target) from None


def describe(splits: Splits, kind: Kind = "classification") -> dict[str, object]:
    """Summarise the splits for their owner before training: plain values, ready for JSON.

    Duplicates are exact duplicates of texts, without labels. Shared ones make a test unreliable.
    """
    parts = {part: getattr(splits, part) for part in PARTS}
    digests = {part: Counter(map(digest_of_text, examples)) for part, examples in parts.items()}
    ids = {part: {example.id for example in examples} for part, examples in parts.items()}
    pairs = list(combinations(PARTS, 2))
    summary = {
        **{part: _describe(examples, kind) for part, examples in parts.items()},
        "duplicate_texts": {part: count.total() - len(count) for part, count in digests.items()},
        "shared_texts": {f"{a}/{b}": len(digests[a].keys() & digests[b].keys()) for a, b in pairs},
        "shared_ids": {f"{a}/{b}": len(ids[a] & ids[b]) for a, b in pairs},
    }
    if all("/" in id for known in ids.values() for id in known):  # a column names patients
        patients = {part: {patient_of(id) for id in known} for part, known in ids.items()}
        summary["shared_patients"] = {f"{a}/{b}": len(patients[a] & patients[b]) for a, b in pairs}
    return summary


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
    histogram = {label if len(label) <= LONGEST else shown(label): counts[label] for label in names}
    if once := len(counts) - len(names):  # a column of text, used as labels by mistake
        histogram[f"({once} of one record each, withheld)"] = once
    if scores:
        sizes, edges = np.histogram(scores, bins=BINS)
        for (low, high), size in zip(pairwise(edges), sizes.tolist(), strict=True):
            span = f"{low:.4g} to {high:.4g}"
            histogram[span] = histogram.get(span, 0) + size
    return histogram


def labels_in(example: Example) -> list[str]:
    """Classes, entity types or clicks; or a name from `OURS`."""
    if isinstance(example, Impression):
        return [CLICKED if click else PASSED for click in example.clicks]
    if isinstance(example, Tagged) and example.tags is not None:
        return [tag[2:] for tag in example.tags if tag[0] == "B"] or [NO_ENTITY]
    if isinstance(example, Text) and isinstance(example.label, tuple):
        return list(example.label) or [NO_LABEL]
    if isinstance(example, Text) and example.label is not None:
        return [example.label] if isinstance(example.label, str) else []
    return [UNLABELLED]


def texts_of(example: Example) -> tuple[str, ...]:
    """The texts that a model reads of an example."""
    if isinstance(example, Text):
        return (example.text,) if example.pair is None else (example.text, example.pair)
    if isinstance(example, Tagged):
        return example.tokens
    return example.history + example.candidates


def digest_of_text(example: Example) -> bytes:
    """A digest of the texts that a model reads, including their structure."""
    shape = len(example.history) if isinstance(example, Impression) else 0
    return sha256(json.dumps([shape, *texts_of(example)]).encode()).digest()
