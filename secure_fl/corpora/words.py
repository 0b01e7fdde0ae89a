"""Words that several corpora share: departments, invented drugs, findings, people, settings."""

from __future__ import annotations

from secure_fl.corpora.grammar import Rules

_STEMS = (
    "velo", "cari", "tamo", "brixa",
)  # fmt: skip
_ENDINGS = {  # no drug is called so; an ending is a department's family of drugs
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
