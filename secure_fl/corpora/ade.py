"""Adverse drug events: sentences that report harm by a drug or not, and summaries of them.

Harm has dozens of wordings, and every hospital has its favourites, so each hospital alone rarely
sees its colleagues' wordings. The same words occur in both classes: relief after a stop is harm,
relief after a start is a cure. Some sentences have a wrong label.

A summary tells whether a drug did harm and names drug and finding as the note does. A model learns
it by recognising harm and by copying.
"""

from __future__ import annotations

from random import Random

from secure_fl.corpora.grammar import DEPARTMENTS, SHARED, Rules, Voice, chance, say, sentence
from secure_fl.data.examples import Text

LABELS = ("no-ade", "ade")
_PRIOR, _SPREAD = 0.32, 0.12
_MISCODED = 0.03

RULES: Rules = {
    **SHARED,
    "note.ade": ("{harm}", "{harm}; {tail}", "{harm}; {alarm}"),
    "note.no-ade": ("{fine}", "{fine}; {tail}", "{fine}; {calm}"),
    "tail": (
        "bloods sent", "to be reviewed", "seen by {department}", "{dose} daily",
        "gp informed",
    ),
    "alarm": (
        "alert added", "event reported", "antidote given", "safety desk called", "rescue needed",
    ),
    "calm": (
        "plan unchanged", "refill sent", "therapy goes on", "repeat issued", "content with it",
    ),
    "harm": (
        "{who} {onset} {finding} {after} {start} {drug}",
        "{finding} {relief} {after} {stop} {drug}",
        "{finding} {blamed} {drug}",
        "{drug} {halted} {because} {finding}",
        "{who} {intolerant} {drug} with {finding}",
        "{drug} {caused} {finding}",
        "{finding} {again} {drug}",
    ),
    "fine": (
        "{finding} {relief} {after} {start} {drug}",
        "{finding} {relapsed} {after} {stop} {drug}",
        "{finding} {managed} {drug}",
        "{drug} {halted} {because} {reason}",
        "{drug} {given} {finding}",
        "{drug} {helped} {finding}",
        "{who} {denies} {finding} on {drug}",
        "{finding} {notblamed} {drug}",
        "{who} {told} {finding} with {drug}",
    ),
    "onset": (
        "developed", "noticed", "reported", "showed", "suffered", "had", "described",
        "presented with",
    ),
    "relief": (
        "resolved", "settled", "cleared", "eased", "subsided", "faded", "improved", "vanished",
    ),
    "relapsed": ("relapsed", "returned", "came back", "rebounded", "resurfaced", "awoke"),
    "after": ("after", "following", "upon", "since"),
    "start": (
        "starting", "commencing", "adding", "beginning", "increasing", "loading", "doubling",
        "initiating",
    ),
    "stop": (
        "stopping", "discontinuing", "holding", "omitting", "withdrawing", "ceasing", "missing",
        "tapering",
    ),
    "blamed": (
        "attributed to", "secondary to", "ascribed to", "blamed on", "due to", "induced by",
        "provoked by", "precipitated by", "imputed to", "explained by",
    ),
    "halted": ("stopped", "held", "discontinued", "withdrawn", "ceased", "suspended"),
    "because": ("because of", "owing to", "in view of", "for", "given", "on account of"),
    "reason": (
        "cost", "a shortage", "patient preference", "the formulary", "completion", "pregnancy",
        "duplication", "travel", "fasting",
    ),
    "intolerant": (
        "could not tolerate", "is intolerant of", "is allergic to", "reacted to",
        "is hypersensitive to", "was poisoned by", "was harmed by", "collapsed on",
        "became unwell on",
    ),
    "caused": (
        "caused", "produced", "unmasked", "aggravated", "worsened", "triggered", "led to",
        "kindled", "elicited",
    ),
    "again": (
        "returned on rechallenge with", "recurred with", "reappeared with", "dose dependent on",
        "flared under", "peaking after", "tracked",
    ),
    "managed": (
        "treated with", "managed with", "controlled on", "stable on", "covered by", "awaiting",
        "responding to", "an indication for",
    ),
    "given": (
        "given for", "prescribed for", "started for", "continued for", "recommended for",
        "requested for", "licensed for", "trialled for",
    ),
    "helped": (
        "relieved", "prevented", "controlled", "suppressed", "cured", "reduced", "helped", "calmed",
        "shortened",
    ),
    "denies": (
        "denies", "reports no", "is without", "is free of", "never had", "screened negative for",
        "was spared",
    ),
    "notblamed": (
        "unrelated to", "predating", "long before", "older than", "independent of",
        "chronic despite", "not due to",
    ),
    "told": (
        "was counselled about", "was warned of", "was advised on", "asked about", "worries about",
        "fears", "was informed of",
    ),
}  # fmt: skip


def draw(by: Voice, source: Random, name: str) -> Text:
    """Write one note and its label in a hospital's voice."""
    label = LABELS[chance(_PRIOR + _SPREAD * by.lean, source)]
    department = say(by, "department", source)
    text = say(by, f"note.{label}", source, department)
    coded = LABELS[1 - LABELS.index(label)] if chance(_MISCODED, source) else label
    return Text(name, sentence(text), label=coded)


SUMMARY_RULES: Rules = {**RULES, "line": ("event: , stopped", "no event, continued")}
_DRUGS, _FINDINGS = (
    [name for department in DEPARTMENTS for name in RULES[f"{symbol}.{department}"]]
    for symbol in ("drug", "finding")
)


def draw_summary(by: Voice, source: Random, name: str) -> Text:
    """Write one note in a hospital's voice, and its summary."""
    note = draw(by, source, name)
    text = note.text.lower()
    drug = next(drug for drug in _DRUGS if drug in text)
    findings = [finding for finding in _FINDINGS if finding in text]
    harm = note.label == "ade" and findings
    line = f"event: {findings[0]}, {drug} stopped" if harm else f"no event, {drug} continued"
    return Text(name, note.text, sentence(line))
