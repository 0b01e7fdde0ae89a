"""The three types of examples, and D⁰: public ones, unlabelled and equal at all members.

Comparisons with D⁰ involve a member's own records, so their results stay at that member.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Text:
    """A text or a pair of texts with a class, a score or several labels (`None`: unlabelled).

    An empty tuple is a record that was read and has no label. For completion: a prompt, with its
    completion as the pair.
    """

    id: str
    text: str
    pair: str | None = None
    label: str | float | tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Tagged:
    """A sentence of tokens with IOB2 tags (`None`: unlabelled)."""

    id: str
    tokens: tuple[str, ...]
    tags: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Impression:
    """One page shown to a reader: titles read before, titles offered, which were clicked."""

    id: str
    history: tuple[str, ...]
    candidates: tuple[str, ...]
    clicks: tuple[bool, ...]


Example: TypeAlias = Text | Tagged | Impression
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
