"""Pairs of notes, labelled by whether both describe the same event, or by their similarity.

A note states three facts in its writer's words: the problem, its course, and the place. Two notes
describe the same event if their problems agree, in any words. Their similarity weighs the agreeing
facts. Many notes state their relation to the note before, in words that vary between hospitals; for
the others a model has to compare.
"""

from __future__ import annotations

from random import Random

from secure_fl.corpora.grammar import SHARED, Rules, Voice, chance, say, sentence
from secure_fl.data.examples import Text

LABELS = ("different", "same")
_PRIOR, _SPREAD = 0.45, 0.12
_MISCODED = 0.03
_LINKED = 0.6  # share of second notes that state their relation to the first
_WORTH = {"problem": 2.5, "course": 1.5, "place": 1.0}  # of an agreement on this fact; the sum is 5
_AGREE = {"problem": 0.6, "course": 0.6, "place": 0.5}
_UNSURE = 0.4  # the difference between two raters
_KIN = ((1.5, "different"), (3.5, "partly"), (6.0, "same"))  # the relation below a score

RULES: Rules = {
    "problem": ("chest", "gut", "skin"),
    "course": ("better", "worse"),
    "place": ("home", "ward"),
    "problem.chest": ("dyspnoea", "wheeze", "cough"),
    "problem.gut": ("nausea", "vomiting", "bloating"),
    "problem.skin": ("rash", "itching", "blisters"),
    "course.better": ("improving", "settling", "easing"),
    "course.worse": ("worsening", "persisting", "progressing"),
    "place.home": ("at home", "by phone"),
    "place.ward": ("on the ward", "in hospital"),
    "organ.chest": ("chest", "lungs"),
    "organ.gut": ("abdomen", "bowel"),
    "organ.skin": ("skin", "scalp"),
    "note": (
        "{organ}: {problem} {course} {place}",
        "{who} with {problem}, {organ} {course}",
        "{place}, {organ} {problem} {course}",
        "{organ} seen {place}, {problem} {course}",
    ),
    "link.same": (
        "as before", "still", "follow up", "once more", "likewise", "unchanged story", "continued",
        "same complaint", "ongoing", "again", "repeat visit", "no change", "known to us",
    ),
    "link.partly": (
        "resembling it", "partly alike", "comparable", "reminiscent", "overlapping", "not far off",
        "akin to it", "somewhat close", "a variant", "roughly so",
    ),
    "link.different": (
        "new", "first visit", "another matter", "separately", "unlike before", "unrelated",
        "for once", "besides", "different story", "meanwhile", "by contrast", "other than that",
        "surprisingly",
    ),
    "who": SHARED["who"],
    "age": SHARED["age"],
    "number": SHARED["number"],
}  # fmt: skip


def _other(symbol: str, fact: str, source: Random) -> str:
    rest = [other for other in RULES[symbol] if other != fact]
    return rest[int(source.random() * len(rest))]


def _note(by: Voice, facts: dict[str, str], source: Random, link: str = "") -> str:
    text = say(by, "note", source, *facts.values())
    return sentence(f"{say(by, f'link.{link}', source)}, {text}" if link else text)


def _facts(by: Voice, source: Random) -> dict[str, str]:
    return {symbol: say(by, symbol, source) for symbol in _WORTH}


def draw_pair(by: Voice, source: Random, name: str) -> Text:
    """Write two notes, labelled by whether they describe the same event."""
    same = chance(_PRIOR + _SPREAD * by.lean, source)
    first, second = _facts(by, source), _facts(by, source)
    problem = first["problem"]
    second["problem"] = problem if same else _other("problem", problem, source)
    link = LABELS[same] if chance(_LINKED, source) else ""
    coded = LABELS[same != chance(_MISCODED, source)]
    return Text(name, _note(by, first, source), _note(by, second, source, link), coded)


def draw_score(by: Voice, source: Random, name: str) -> Text:
    """Write two notes and their similarity from 0 to 5."""
    first = _facts(by, source)
    second, score = dict(first), 0.0
    for symbol, share in _AGREE.items():
        if chance(share + _SPREAD * by.lean, source):
            score += _WORTH[symbol]
        else:
            second[symbol] = _other(symbol, first[symbol], source)
    rated = score + _UNSURE * (2 * source.random() - 1)
    label = round(min(5.0, max(0.0, rated)), 1)
    kin = next(kin for bound, kin in _KIN if score < bound)
    link = kin if chance(_LINKED, source) else ""
    return Text(name, _note(by, first, source), _note(by, second, source, link), label)
