"""Weighted grammars, and the words that several corpora share.

A grammar maps a symbol to its alternatives. `{name}` inside an alternative stands for a symbol. It
is looked up as `name.scope` first, where a scope is a department or a topic. `[text]Label` marks an
entity. A voice gives each alternative a weight: with shift 0 all weights are equal; with shift 1
each hospital has favourites, and a long tail of forms that it rarely uses and others use often.

The same seed gives the same text on every platform and Python version: only `Random.random()` is
called, generators are seeded with text, and weights come from +, * and / alone.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Rules: TypeAlias = Mapping[str, tuple[str, ...]]
Ladder: TypeAlias = tuple[float, ...]  # cumulative shares, the last is 1

_SLOT = re.compile(r"\{(\w+)\}")
_MARK = re.compile(r"\[|\][A-Z][a-z]*")
_WORD = re.compile(r"[A-Za-z0-9]+|[^\sA-Za-z0-9]")


@dataclass(frozen=True, slots=True)
class Voice:
    """A hospital's way of writing: favourites, label prior (`lean` in -1..1), and its number."""

    party: int
    lean: float
    parts: Mapping[str, tuple[tuple[str, ...], ...]]  # text, symbol, text, symbol, ..., text
    ladders: Mapping[str, Ladder]


def rng(*name: object) -> Random:
    """The generator for this name; it is seeded with text, because `hash` varies."""
    return Random("/".join(str(part) for part in name))  # noqa: S311 - synthetic text, no secret


def shuffled(items: Sequence[T], source: Random) -> list[T]:
    """The items in random order; `Random.shuffle` may differ between versions."""
    keys = [source.random() for _ in items]
    return [items[i] for i in sorted(range(len(items)), key=keys.__getitem__)]


def ladder(weights: Iterable[float]) -> Ladder:
    """Turn weights into cumulative shares."""
    steps = list(accumulate(weights))  # not sum(): its rounding changed in Python 3.12
    return (*(step / steps[-1] for step in steps[:-1]), 1.0)


def favourites(count: int, shift: float, source: Random) -> Ladder:
    """Shares between equal (shift 0) and favourites with a long tail (shift 1)."""
    ranked = shuffled([1 / (rank + 1) for rank in range(count)], source)
    total = list(accumulate(ranked))[-1]
    return ladder((1 - shift) / count + shift * weight / total for weight in ranked)


def voice(rules: Rules, *, seed: int, party: int, parties: int, shift: float) -> Voice:
    """The voice of one of the hospitals, whose leans are spread evenly."""
    leans = shuffled([2 * k / max(parties - 1, 1) - 1 for k in range(parties)], rng(seed, "lean"))
    return Voice(
        party=party,
        lean=shift * leans[party] if parties > 1 else 0.0,
        parts={s: tuple(tuple(_SLOT.split(a)) for a in alts) for s, alts in rules.items()},
        ladders={
            symbol: favourites(len(alts), shift, rng(seed, "voice", party, symbol))
            for symbol, alts in rules.items()
        },
    )


def climb(steps: Ladder, source: Random) -> int:
    """Draw an index by its share."""
    return bisect_right(steps, source.random(), 0, len(steps) - 1)


def chance(share: float, source: Random) -> bool:
    """Draw true with this probability."""
    return source.random() < share


def say(by: Voice, symbol: str, source: Random, *scopes: str) -> str:
    """Write out a symbol in a hospital's voice, in the first scope that defines it."""
    key = next((k for scope in scopes if (k := f"{symbol}.{scope}") in by.parts), symbol)
    parts = by.parts[key][climb(by.ladders[key], source)]
    if len(parts) == 1:
        return parts[0]
    return "".join(
        say(by, part, source, *scopes) if i % 2 else part for i, part in enumerate(parts)
    )


def sentence(text: str) -> str:
    """Capitalise a text and end it with a full stop."""
    return f"{text[:1].upper()}{text[1:]}."


def tokens(text: str) -> list[str]:
    """Split a text into words and punctuation marks."""
    return _WORD.findall(text)


def words(rules: Rules) -> set[str]:
    """All lower-case words and punctuation marks that these rules can produce."""
    plain = (_MARK.sub(" ", _SLOT.sub(" ", text)) for alts in rules.values() for text in alts)
    return {"."} | {word.lower() for text in plain for word in tokens(text)}


_STEMS = ("velo", "cari", "tamo", "brixa")
_ENDINGS = {  # of invented drugs, by department
    "cardiology": "dorin", "neurology": "zepam", "oncology": "tuvib", "infections": "mycel",
    "psychiatry": "traxine", "rheumatology": "fexon",
}  # fmt: skip
_FINDINGS = {
    "cardiology": "palpitations|bradycardia|syncope|ankle swelling",
    "neurology": "tremor|drowsiness|seizures|diplopia",
    "oncology": "neutropenia|mucositis|hair loss|fatigue",
    "infections": "diarrhoea|urticaria|fever|tendon pain",
    "psychiatry": "insomnia|agitation|dry mouth|sedation",
    "rheumatology": "gastritis|rash|mouth ulcers|bruising",
}
DEPARTMENTS = tuple(_ENDINGS)

SHARED: Rules = {
    "department": DEPARTMENTS,
    **{f"drug.{d}": tuple(s + ending for s in _STEMS) for d, ending in _ENDINGS.items()},
    **{f"finding.{d}": tuple(text.split("|")) for d, text in _FINDINGS.items()},
    "who": ("patient", "pt", "he", "she", "this {age} year old"),
    "age": ("24", "38", "45", "57", "63", "74", "86"),
    "number": ("2", "3", "4", "5", "6", "7", "10", "12", "14", "21"),
    "dose": ("5 mg", "10 mg", "20 mg", "25 mg", "40 mg", "50 mg", "75 mg", "100 mg", "250 mg"),
}
