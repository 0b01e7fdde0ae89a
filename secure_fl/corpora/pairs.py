"""Pairs of notes: do both tell of the same event (`pairs`), and how alike are they (`similarity`)?

Each note tells three facts in the writer's words: a finding, its course, and where it was seen.
Pairs agree on some of them; the same fact is often told by another word. Two notes are the same
event if finding and course agree, and a pair scores 5 if everything does.
"""

from __future__ import annotations

from random import Random

from secure_fl.corpora.grammar import Rules, Voice, chance, say, sentence
from secure_fl.corpora.words import SHARED
from secure_fl.examples import Text

LABELS = ("different", "same")
_PRIOR, _SPREAD = 0.45, 0.12
_MISCODED = 0.03
_WORTH = {"problem": 2.5, "course": 1.5, "place": 1.0}  # of agreeing on this fact; together 5

RULES: Rules = {
    "problem": ("chest", "gut", "skin", "mind"),
    "course": ("better", "worse"),
    "place": ("home", "ward"),
    "problem.chest": ("dyspnoea", "wheeze", "cough", "chest pain"),
    "problem.gut": ("nausea", "vomiting", "bloating", "belly pain"),
    "problem.skin": ("rash", "itching", "blisters", "hives"),
    "problem.mind": ("agitation", "low mood", "panic", "insomnia"),
    "course.better": ("improving", "settling", "easing", "resolved", "less severe"),
    "course.worse": ("worsening", "persistent", "progressing", "unrelieved", "more severe"),
    "place.home": ("at home", "by phone", "in the community"),
    "place.ward": ("on the ward", "at the bedside", "in hospital"),
    "who": SHARED["who"],
    "age": SHARED["age"],
    "number": SHARED["number"],
}  # fmt: skip
