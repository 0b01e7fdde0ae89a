"""Named entities: drugs, doses, diseases and symptoms, each hospital with its own label set.

Every note mentions all types, but a hospital tags only its own. Some words are a symptom if a
patient complains of them and a disease if they are known from before. Amounts are doses or
laboratory values. Sometimes a tagger overlooks an entity.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from random import Random

from secure_fl.corpora.grammar import SHARED, Rules, Voice, chance, say, sentence, tokens
from secure_fl.data.examples import Tagged

LABELS = ("Disease", "Dose", "Drug", "Symptom")
OWN = (("Drug", "Dose"), ("Disease",), ("Drug", "Symptom"), ("Disease", "Dose"), ("Symptom",))
_OVERLOOKED = 0.04
_SPAN = re.compile(r"\[(.*?)\]([A-Z]\w*)")

_EITHER = ("anaemia", "jaundice", "hypotension", "neuropathy", "gastritis", "insomnia")

RULES: Rules = {
    **SHARED,
    "note": (
        "{who} {complains} {symptom} {while} {drug}",
        "{who} {complains} {symptom} and {symptom}, {known} {disease}",
        "{known} {disease}, {begun} {drug} {dose}",
        "{drug} {dose} {begun} for {disease}",
        "{changed} {drug} to {dose} given {symptom}",
        "{disease} excluded, {symptom} {course}",
        "{lab} {amount}, {drug} {dose} goes on",
        "{symptom} {course}, {drug} {stopped}",
        "{family} {disease}, {complains} {symptom}",
        "no {symptom} {while} {drug} {dose}, {lab} {amount}",
    ),
    "drug": ("[{drugname}]Drug", "[{drugname} {form}]Drug"),
    "drugname": tuple(a for key, alts in SHARED.items() if key.startswith("drug.") for a in alts),
    "form": ("retard", "depot", "syrup", "forte"),
    "dose": ("[{amount}]Dose", "[{amount} {times}]Dose", "[{count} tablets]Dose"),
    "amount": SHARED["dose"],
    "times": ("daily", "twice daily", "at night", "every {number} hours"),
    "count": ("one", "two", "three", "half"),
    "disease": ("[{diseasename}]Disease", "[{grade} {diseasename}]Disease"),
    "diseasename": (
        "asthma", "migraine", "epilepsy", "gout", "psoriasis", "pneumonia", "diabetes", "sepsis",
        "hepatitis", "renal failure", "heart failure", "crohn disease", "lung cancer", *_EITHER,
    ),
    "grade": ("chronic", "acute", "recurrent", "end stage"),
    "symptom": ("[{symptomname}]Symptom", "[{strength} {symptomname}]Symptom"),
    "symptomname": (
        "rash", "cough", "fever", "nausea", "tremor", "dizziness", "itching", "fatigue", "thirst",
        "chest pain", "back pain", "joint swelling", "blurred vision", *_EITHER,
    ),
    "strength": ("severe", "mild", "sudden", "acute"),
    "complains": ("complains of", "reports", "has", "presents with", "troubled by", "describes"),
    "known": ("known", "history of", "background of", "longstanding", "pmh"),
    "family": ("family history of", "mother with", "brother had", "no known"),
    "while": ("on", "while on", "since starting", "despite", "under"),
    "begun": ("begun on", "started", "put on", "advised", "prescribed"),
    "changed": ("reduced", "increased", "titrated", "halved"),
    "stopped": ("stopped", "held", "paused", "withdrawn"),
    "course": ("settled", "persists", "improving", "worse", "unchanged"),
    "lab": ("sodium", "creatinine", "bilirubin", "urea", "protein loss"),
}  # fmt: skip


def draw(by: Voice, source: Random, name: str, labels: Collection[str] = LABELS) -> Tagged:
    """Write one note and tag the entities of these labels."""
    text = sentence(say(by, "note", source))
    if text.startswith("["):
        text = text[0] + text[1].upper() + text[2:]
    words: list[str] = []
    tags: list[str] = []
    end = 0
    for span in _SPAN.finditer(text):
        before, inside = tokens(text[end : span.start()]), tokens(span[1])
        # Drawn for every label, so that texts do not depend on the label set.
        overlooked = chance(_OVERLOOKED, source)
        words += before + inside
        tags += ["O"] * len(before)
        if span[2] in labels and not overlooked:
            tags += [f"B-{span[2]}"] + [f"I-{span[2]}"] * (len(inside) - 1)
        else:
            tags += ["O"] * len(inside)
        end = span.end()
    rest = tokens(text[end:])
    return Tagged(name, (*words, *rest), (*tags, *("O" for _ in rest)))


def draw_own(by: Voice, source: Random, name: str) -> Tagged:
    """Write one note and tag the entities of this hospital's label set."""
    return draw(by, source, name, OWN[by.party % len(OWN)])
