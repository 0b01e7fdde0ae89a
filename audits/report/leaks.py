"""Sentences on possible leaks and their readers, made from the access matrix."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import NamedTuple

from secure_fl.audits.document import BAG, Access, AuditDocument, CellPart
from secure_fl.audits.report.sentences import listing
from secure_fl.audits.roles import COORDINATOR, HOST, MEMBER, PUBLIC

UPDATE = "one hospital's update"
WORDS = "words of one hospital's records"
TRAINED_ON = "whether a record was trained on"
SINGLE: Mapping[str, str] = {  # rows about one hospital, as the object of "read"
    UPDATE: "its update",
    WORDS: "which words occur in its notes",
    "how many records of each label a hospital has": "its number of records of each label",
    "the number of records that a hospital sends along": "its number of records",
    "how many records a hospital has": "roughly its number of records",
    "one hospital's counts in a codebook": "its counts in a codebook",
    "one hospital's counts in an evaluation": "its scores in an evaluation",
}
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
EMBEDDINGS = "Because the word embeddings are trained, another hospital"

LEAKS, SUMS, NOTHING, UNKNOWN = "full", "half", "empty", "doubt"  # icons


class Leak(NamedTuple):
    """A sentence on one kind of reader: the information that it could learn."""

    icon: str
    text: str
    runs: str = ""  # to which it applies, if several are compared


def leaks(document: AuditDocument) -> list[Leak]:
    """Say what could leak: to the coordinator, to another hospital, to several, to others."""
    roles = dict.fromkeys(cell.role for row in document.matrix for cell in row.cells)
    found = [_coordinator(document, COORDINATOR in roles)]
    if MEMBER in roles:
        found.append(_member(document))
    found += _coalitions(document, [role for role in roles if role.startswith(f"{COORDINATOR} +")])
    if HOST in roles:
        found.append(_reader(document, HOST, "The host"))
    return found + _public(document)


def grouped(documents: Sequence[AuditDocument]) -> list[Leak]:
    """Collect the sentences of all runs, each with the names of the runs to which it applies."""
    groups: dict[Leak, list[str]] = {}
    for found in zip_longest(*map(leaks, documents)):
        for document, leak in zip(documents, found, strict=True):
            if leak is not None:
                groups.setdefault(leak, []).append(document.run.name)
    every = len(documents)
    return [
        leak._replace(runs="all runs" if len(names) == every else listing(names))
        for leak, names in groups.items()
    ]


def _coordinator(document: AuditDocument, viewed: bool) -> Leak:
    if not viewed:
        return Leak(UNKNOWN, "No attack was made on what the coordinator saw.")
    said = _reader(document, COORDINATOR, "The coordinator")
    if said.icon != NOTHING:
        return said
    accesses = {cell.access for cell in _sums(document, COORDINATOR)}
    if accesses == {"nothing"}:
        return said._replace(text=f"{said.text.removesuffix('.')}, nor their sum.")
    if "of a sum" in accesses:
        words = _cells(document, COORDINATOR).get(WORDS)
        also = ""
        if words is not None and words.access == "of a sum":
            also = f", and tell which words occur in all notes together{_guess(document, words)}"
        return Leak(SUMS, f"{said.text} It could read the sum of the updates{also}.")
    return said


def _reader(document: AuditDocument, role: str, subject: str) -> Leak:
    """Say what one role could read of a single hospital."""
    cells = _cells(document, role)
    single: dict[Access, list[str]] = {}
    for what, phrase in SINGLE.items():
        access = cells[what].access if what in cells else "not tested"  # it may be left out
        single.setdefault(access, []).append(phrase)
    unknown = single.get("inconclusive", []) + single.get("not tested", [])
    hidden = single.get("nothing", []) + single.get("of a sum", [])
    sizes = single.get("sizes", [])
    rest = f" For {listing(unknown)}, no attack gave an answer." if unknown else ""
    if read := single.get("everything", []):
        guess = _guess(document, cells.get(WORDS))
        exact = "its number of records" in read  # then its rough number says nothing more
        named = [one + guess * (one == SINGLE[WORDS]) for one in (*read, *(() if exact else sizes))]
        return Leak(LEAKS, f"{subject} could read of a single hospital: {listing(named)}.{rest}")
    if not hidden:
        return Leak(UNKNOWN, f"It is not known what {_inside(subject)} could read of a hospital.")
    if unknown:
        return Leak(UNKNOWN, f"{subject} could not read of any hospital: {listing(hidden)}.{rest}")
    text = f"{subject} could not read anything of any single hospital"
    return Leak(NOTHING, f"{text}, except {listing(sizes)}." if sizes else f"{text}.")


def _member(document: AuditDocument) -> Leak:
    """Say what another hospital could read, and what trained embeddings reveal to it."""
    said = _reader(document, MEMBER, "Another hospital")
    if said.icon == LEAKS:
        return said
    if not sums_seen(document):
        return said
    text = "Other hospitals see only the sum of the updates."
    if said.icon == UNKNOWN:
        text = f"Other hospitals see the sum of the updates. {said.text}"
    words = _cells(document, MEMBER).get(WORDS)
    if words is not None and words.access == "of a sum":
        text += (
            f" {EMBEDDINGS} can tell which words occur in the other hospitals' notes "
            f"together{_guess(document, words)}."
        )
    elif trains_embeddings(document):
        text += f" {EMBEDDINGS} may find out which words occur in the others' notes together."
    return Leak(SUMS if said.icon == NOTHING else said.icon, text)


def sums_seen(document: AuditDocument) -> bool:
    """True if a hospital could read the sum of the updates."""
    return any(cell.access == "of a sum" for cell in _sums(document, MEMBER))


def trains_embeddings(document: AuditDocument) -> bool:
    """True if the run's settings train and send the word embeddings."""
    try:
        model = tomllib.loads(document.run.settings).get("model", {})
    except tomllib.TOMLDecodeError:
        return False
    return isinstance(model, Mapping) and model.get("freeze_embeddings") is False


def _coalitions(document: AuditDocument, roles: Sequence[str]) -> list[Leak]:
    """Say what hospitals could read that help the coordinator, or each other."""
    access = {role: _cells(document, role)[UPDATE].access for role in roles
              if UPDATE in _cells(document, role)}  # fmt: skip
    alone = _cells(document, COORDINATOR).get(UPDATE)
    if not access:
        return [Leak(UNKNOWN, "Nobody tested what hospitals could learn by helping each other.")]
    if alone is not None and alone.access == "everything":
        return [Leak(LEAKS, "The coordinator needs no hospital's help for this.")]
    reading = [role for role in roles if access.get(role) == "everything"]
    failing = [role for role in roles if access.get(role) == "nothing"]
    parts = []
    if reading:
        parts.append(_together(document, reading[0]))
    if failing:
        parts.append(f"{_named(failing[-1])} together could not read any other hospital's update.")
    if not parts:
        return [Leak(UNKNOWN, "It is not known what hospitals could learn by helping each other.")]
    return [Leak(LEAKS if reading else NOTHING, " ".join(parts))]


def _together(document: AuditDocument, role: str) -> str:
    """Say that a coalition reads an update; all hospitals but one need no coordinator for it."""
    n, helpers = len(document.run.parties), role.removeprefix(f"{COORDINATOR} + ").split()[0]
    if helpers.isdigit() and int(helpers) == n - 1 and sums_seen(document):
        last = {2: "the other", 3: "the third"}.get(n, "the last one")
        return (
            f"{_number(n - 1).capitalize()} of the {_number(n)} hospitals together can work out "
            f"what {last} sent."
        )
    return f"{_named(role)} together could read another hospital's update."


def _named(role: str) -> str:
    """Name a coalition: "The coordinator and one hospital"."""
    members = role.split(" + ")
    words = [
        f"{_number(int(count))} {what}" if count.isdigit() else f"the {member}"
        for member in members
        for count, _, what in [member.partition(" ")]
    ]
    named = listing(words)
    return named[0].upper() + named[1:]


def _public(document: AuditDocument) -> list[Leak]:
    """Say what the finished model reveals about its training records."""
    cell = _cells(document, PUBLIC).get(TRAINED_ON)
    if cell is None:
        return []
    if cell.access == "everything":
        text = "Anyone with the finished model can find some of the records that trained it."
        return [Leak(LEAKS, text)]
    if cell.access == "nothing":
        text = "From the finished model, no attack could tell which records trained it."
        return [Leak(NOTHING, text)]
    return [Leak(UNKNOWN, "It is not known if the finished model reveals its training records.")]


def _cells(document: AuditDocument, role: str) -> dict[str, CellPart]:
    return {row.what: c for row in document.matrix for c in row.cells if c.role == role}


def _sums(document: AuditDocument, role: str) -> list[CellPart]:
    return [cell for what, cell in _cells(document, role).items() if what == "a sum of updates"]


def _guess(document: AuditDocument, cell: CellPart | None) -> str:
    """Quote the result of an attack on words, and of guessing from public notes."""
    evidence = cell.evidence if cell is not None else ()
    for trial in document.trials:
        if trial.id in evidence and trial.attack == BAG and trial.deployed is not None:
            reached, chance = trial.deployed.value or 0.0, trial.deployed.chance
            return f" (attack: {100 * reached:.0f}\u00a0%, guessing: {100 * chance:.0f}\u00a0%)"
    return ""


def _number(count: int) -> str:
    return NUMBERS[count] if count < len(NUMBERS) else str(count)


def _inside(subject: str) -> str:
    return subject[0].lower() + subject[1:]
