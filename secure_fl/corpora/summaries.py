"""Summaries: a note, and the line that its reader writes below it.

The line says whether a drug did harm, and names drug and finding as the note has them: learned by
telling harm from cure, and by copying. Its words are those of the other corpora.
"""

from __future__ import annotations

from random import Random

from secure_fl.corpora import ade
from secure_fl.corpora.grammar import Rules, Voice, sentence
from secure_fl.corpora.words import DEPARTMENTS
from secure_fl.data.examples import Text

RULES: Rules = {**ade.RULES, "line": ("event: , stopped", "no event, continued")}
_DRUGS, _FINDINGS = (
    [name for department in DEPARTMENTS for name in RULES[f"{symbol}.{department}"]]
    for symbol in ("drug", "finding")
)


def draw(by: Voice, source: Random, name: str) -> Text:
    """Write one note in a hospital's voice, and the line below it."""
    note = ade.draw(by, source, name)
    text = note.text.lower()
    drug = next(drug for drug in _DRUGS if drug in text)
    findings = [finding for finding in _FINDINGS if finding in text]
    harm = note.label == "ade" and findings
    line = f"event: {findings[0]}, {drug} stopped" if harm else f"no event, {drug} continued"
    return Text(name, note.text, sentence(line))
