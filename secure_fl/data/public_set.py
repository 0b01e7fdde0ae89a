"""D⁰: unlabelled public records, which are equal at all members of a federation.

The comparisons here involve a member's own records, so their results stay at that member.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import TypeAlias

from secure_fl.data.examples import Example, Tagged, Text

Fields: TypeAlias = tuple[tuple[str, ...], ...]

HOW = "public in [data] of a settings file, Silo(..., public=...) in a program"


def without_labels(examples: Sequence[Example]) -> tuple[Example, ...]:
    """Copy records without their labels, tags and clicks."""
    return tuple(e if _unlabelled(e) else _without_label(e) for e in examples)


def first_unlabelled(examples: Iterable[Example]) -> int | None:
    """Find the row of the first text or sentence without a label; impressions have clicks."""
    unlabelled = (isinstance(e, Text | Tagged) and _unlabelled(e) for e in examples)
    return next((row for row, missing in enumerate(unlabelled) if missing), None)


def digest(examples: Iterable[Example]) -> bytes:
    """SHA-256 of ids and texts in order: equal for equal records."""
    digest = sha256()
    for example in examples:
        record = [type(example).__name__, example.id, _fields(example)]
        digest.update(json.dumps(record).encode() + b"\n")
    return digest.digest()


def overlap(private: Iterable[Example], public: Iterable[Example]) -> int:
    """Count public records whose text is a private record's too, ignoring case and spacing."""
    texts = {_normalised(example) for example in private}
    return sum(_normalised(example) in texts for example in public)


def _unlabelled(example: Example) -> bool:
    if isinstance(example, Text):
        return example.label is None or example.label == ""
    return example.tags is None if isinstance(example, Tagged) else not any(example.clicks)


def _without_label(example: Example) -> Example:
    if isinstance(example, Text):
        return replace(example, label=None)
    if isinstance(example, Tagged):
        return replace(example, tags=None)
    return replace(example, clicks=(False,) * len(example.clicks))


def _fields(example: Example) -> Fields:
    if isinstance(example, Text):
        return ((example.text,),) if example.pair is None else ((example.text,), (example.pair,))
    return (
        (example.tokens,) if isinstance(example, Tagged) else (example.history, example.candidates)
    )


def _normalised(example: Example) -> bytes:
    """A digest that ignores case and spacing."""
    words = [" ".join(" ".join(field).casefold().split()) for field in _fields(example)]
    return sha256(json.dumps(words).encode()).digest()
