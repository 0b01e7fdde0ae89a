"""The access matrix of one run, and of several runs with their differences marked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from secure_fl.audits.document import AuditDocument, CellPart, TrialPart
from secure_fl.audits.report.terms import ABSENT, ACCESS, Term


class MatrixCell(NamedTuple):
    """One field of the matrix, ready for display."""

    term: Term
    note: str
    evidence: tuple[TrialPart, ...]
    differs: bool = False

    @property
    def basis(self) -> str:
        """The reason for the entry where no trial is given."""
        untried = self.term.word in (ACCESS["own"].word, ACCESS["not tested"].word, ABSENT.word)
        return "" if self.evidence or untried else "by design, no trial"


def roles(documents: Iterable[AuditDocument]) -> list[str]:
    """List the matrix's columns in the order in which they first occur."""
    return _once(
        cell.role for document in documents for row in document.matrix for cell in row.cells
    )


def kinds(documents: Iterable[AuditDocument]) -> list[str]:
    """List the matrix's rows in the order in which they first occur."""
    return _once(row.what for document in documents for row in document.matrix)


def comparable(documents: Sequence[AuditDocument]) -> list[str]:
    """List the rows that at least two audits have; other rows are in their run's own section."""
    every = [row for document in documents for row in kinds([document])]
    return [what for what in _once(every) if every.count(what) > 1]


def line(document: AuditDocument, what: str, columns: Sequence[str]) -> list[MatrixCell]:
    """Collect one row of the matrix: one kind of information, for every role."""
    trials = {trial.id: trial for trial in reversed(document.trials)}
    rows = (row for row in document.matrix if row.what == what)
    cells = {cell.role: cell for row in rows for cell in row.cells}
    return [_cell(cells.get(role), trials) for role in columns]


def compared(documents: Sequence[AuditDocument], what: str) -> list[list[MatrixCell]]:
    """Collect one row of each run's matrix; where runs differ, every field is marked."""
    columns = roles(documents)
    lines = [line(document, what, columns) for document in documents]
    differs = [_differ(column) for column in zip(*lines, strict=True)]
    return [
        [cell._replace(differs=mark) for cell, mark in zip(row, differs, strict=True)]
        for row in lines
    ]


def _differ(column: Iterable[MatrixCell]) -> bool:
    """Compare the runs whose audits say anything."""
    return len({cell.term.word for cell in column} - {ABSENT.word}) > 1


def anchors(documents: Sequence[AuditDocument]) -> list[list[str]]:
    """Name each trial's place on the page, by run: letters, digits and dashes, each name once."""
    used: set[str] = set()

    def fresh(text: str) -> str:
        stem = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
        name, again = stem, 2
        while name in used:
            name, again = f"{stem}-{again}", again + 1
        used.add(name)
        return name

    return [
        [fresh(f"run{place}-trial-{trial.id}") for trial in document.trials]
        for place, document in enumerate(documents, start=1)
    ]


def _cell(part: CellPart | None, trials: Mapping[str, TrialPart]) -> MatrixCell:
    if part is None:
        return MatrixCell(ABSENT, "", ())
    evidence = tuple(trials[one] for one in part.evidence if one in trials)
    return MatrixCell(ACCESS[part.access], part.note, evidence)


def _once(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(items))
