"""Who can see what: the matrix of one run, and of several with their differences marked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from secure_fl.audits.document import AuditDocument, CellPart, TrialPart
from secure_fl.audits.report.terms import ABSENT, ACCESS, Term


class MatrixCell(NamedTuple):
    """One field of the matrix, ready to be shown."""

    term: Term
    note: str
    evidence: tuple[TrialPart, ...]
    differs: bool = False

    @property
    def basis(self) -> str:
        """What the field rests on where no trial does."""
        untried = self.term.word in (ACCESS["own"].word, ACCESS["not tested"].word, ABSENT.word)
        return "" if self.evidence or untried else "by design, no trial"


def roles(documents: Iterable[AuditDocument]) -> list[str]:
    """The matrix's columns, in the order in which they first occur."""
    return _once(
        cell.role for document in documents for row in document.matrix for cell in row.cells
    )


def kinds(documents: Iterable[AuditDocument]) -> list[str]:
    """The matrix's rows, in the order in which they first occur."""
    return _once(row.what for document in documents for row in document.matrix)


def comparable(documents: Sequence[AuditDocument]) -> list[str]:
    """The rows that more than one audit has; what one alone has stands in its own section."""
    found = [row for document in documents for row in kinds([document])]
    return [what for what in _once(found) if found.count(what) > 1]


def line(document: AuditDocument, what: str, columns: Sequence[str]) -> list[MatrixCell]:
    """One kind of information, for every role."""
    trials = {trial.id: trial for trial in reversed(document.trials)}
    cells = _cells(document, what)
    return [_cell(cells.get(role), trials) for role in columns]


def compared(documents: Sequence[AuditDocument], what: str) -> list[list[MatrixCell]]:
    """One kind of information, a line for each run; where runs differ, every field says so."""
    columns = roles(documents)
    lines = [line(document, what, columns) for document in documents]
    differs = [_differ(column) for column in zip(*lines, strict=True)]
    return [
        [cell._replace(differs=mark) for cell, mark in zip(row, differs, strict=True)]
        for row in lines
    ]


def _differ(column: Iterable[MatrixCell]) -> bool:
    """Whether runs differ, of those whose audit says anything."""
    return len({cell.term.word for cell in column} - {ABSENT.word}) > 1


def anchors(documents: Sequence[AuditDocument]) -> list[list[str]]:
    """For each run, its trials' ids on the page: letters, digits and dashes, each one once."""
    taken: set[str] = set()

    def fresh(text: str) -> str:
        stem = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
        name, again = stem, 2
        while name in taken:
            name, again = f"{stem}-{again}", again + 1
        taken.add(name)
        return name

    return [
        [fresh(f"run{place}-trial-{trial.id}") for trial in document.trials]
        for place, document in enumerate(documents, start=1)
    ]


def _cells(document: AuditDocument, what: str) -> dict[str, CellPart]:
    rows = (row for row in document.matrix if row.what == what)
    return {cell.role: cell for row in rows for cell in row.cells}


def _cell(part: CellPart | None, trials: Mapping[str, TrialPart]) -> MatrixCell:
    if part is None:
        return MatrixCell(ABSENT, "", ())
    evidence = tuple(trials[one] for one in part.evidence if one in trials)
    return MatrixCell(ACCESS[part.access], part.note, evidence)


def _once(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(items))
