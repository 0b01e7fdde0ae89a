"""D⁰: records that all members of a federation hold alike, and that nobody has labels of.

What is compared here stays at the member that compares it: its own records are among them.
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
    """Copy records without what nobody may know of them; those that have no label stay."""
    return tuple(example if _blind(example) else _blinded(example) for example in examples)


def first_unlabelled(examples: Iterable[Example]) -> int | None:
    """Find the row of the first text or sentence without a label; impressions have clicks."""
    texts = (isinstance(e, Text | Tagged) and _blind(e) for e in examples)
    return next((row for row, blind in enumerate(texts) if blind), None)


def digest(examples: Iterable[Example]) -> bytes:
    """SHA-256 of ids and texts in order: equal where the records are."""
    whole = sha256()
    for example in examples:
        record = [type(example).__name__, example.id, _fields(example)]
        whole.update(json.dumps(record).encode() + b"\n")
    return whole.digest()


def overlap(private: Iterable[Example], public: Iterable[Example]) -> int:
    """Count the public records whose text is also a private record's, case and spacing aside."""
    own = {_same(example) for example in private}
    return sum(_same(example) in own for example in public)


def _blind(example: Example) -> bool:
    if isinstance(example, Text):
        return example.label is None or example.label == ""
    return example.tags is None if isinstance(example, Tagged) else not any(example.clicks)


def _blinded(example: Example) -> Example:
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


def _same(example: Example) -> bytes:
    """Equal for records that a reader would call the same."""
    words = [" ".join(" ".join(field).casefold().split()) for field in _fields(example)]
    return sha256(json.dumps(words).encode()).digest()
