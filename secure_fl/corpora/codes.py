"""Diagnosis codes: notes of a hospital stay with the codes of the diseases that it treated.

A note has a few remarks, each about one disease. A disease is coded if the patient has it, and not
if it is denied, excluded, only feared, or a relative's. Its sign or its drug may stand for it. Some
codes are forgotten, and some notes have no code. Codes have the form of ICD-10.
"""

from __future__ import annotations

from random import Random

from secure_fl.corpora.grammar import SHARED, Rules, Voice, chance, climb, say, sentence
from secure_fl.data.examples import Text

_DISEASES = {  # by code, the commonest first: a name, and signs that stand for it
    "E11": ("diabetes", "thirst at night"),
    "I50": ("heart failure", "ankle swelling with dyspnoea"),
    "J18": ("pneumonia", "fever with cough"),
    "J45": ("asthma", "wheeze at night"),
    "N17": ("renal failure", "creatinine increased"),
    "D64": ("anaemia", "fatigue with bruising"),
    "G40": ("epilepsy", "seizures"),
    "M10": ("gout", "joint swelling at night"),
}
LABELS = tuple(_DISEASES)
_CODE = {name: code for code, (name, *_) in _DISEASES.items()}
_REMARKS = (0.25, 0.6, 0.9, 1.0)  # cumulative shares of notes with 1, 2, 3 and 4 remarks
_HAS, _SPREAD = 0.62, 0.12  # share of remarks about a disease that the patient has
_FORGOTTEN = 0.04
_FREQUENCY = {name: 1 - 0.06 * rank for rank, name in enumerate(_CODE)}  # against the first one's

RULES: Rules = {
    **SHARED,
    "disease": tuple(_CODE),
    **{f"name.{words[0]}": words for words in _DISEASES.values()},
    "remark.has": (
        "known {name}", "{name} treated with {drug}", "{name} {course}",
        "{drug} {begun} for {name}", "longstanding {name}", "pmh {name}", "{grade} {name}",
        "{who} presents with {name}", "troubled by {name}",
    ),
    "remark.not": (
        "no {name}", "{name} excluded", "denies {name}", "{relative} had {name}",
        "never had {name}", "family history of {name}", "fears {name}",
        "screened negative for {name}", "was counselled about {name}", "{name} in the {relative}",
    ),
    "course": ("worse", "improving", "persisting", "stable", "unchanged", "progressing"),
    "grade": ("chronic", "acute", "recurrent", "severe", "end stage"),
    "begun": ("started", "prescribed", "increased", "continued", "requested"),
    "relative": ("mother", "brother"),
}  # fmt: skip


def draw(by: Voice, source: Random, name: str) -> Text:
    """Write one note and its codes in a hospital's voice."""
    remarks: dict[str, str] = {}
    codes = []
    count, department = 1 + climb(_REMARKS, source), say(by, "department", source)
    while len(remarks) < count:
        disease = say(by, "disease", source)
        if disease in remarks or not chance(_FREQUENCY[disease], source):
            continue
        has = chance(_HAS + _SPREAD * by.lean, source)
        kind = "has" if has else "not"
        remarks[disease] = say(by, f"remark.{kind}", source, disease, department)
        if has and not chance(_FORGOTTEN, source):
            codes.append(_CODE[disease])
    return Text(name, sentence("; ".join(remarks.values())), label=tuple(codes))
