"""The report as one HTML page that loads nothing: no network, no script, no font."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from secure_fl.audits.document import AuditDocument, CellPart, TrialPart, encode, read
from secure_fl.audits.report import plots, report_tables, sentences, trade_off
from secure_fl.audits.report.leaks import Leak, grouped, leaks
from secure_fl.audits.report.sentences import ABSENT, ACCESS, Term
from secure_fl.display.charts import Chart
from secure_fl.display.compare_page import comparison
from secure_fl.display.html import STYLE
from secure_fl.display.run_history import RunHistory, read_run_history
from secure_fl.display.run_page import article
from secure_fl.files import write_whole

HERE = Path(__file__).parent
DOCUMENT, PAGE = "audit.json", "report.html"


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


class RunSection(NamedTuple):
    """One run, with all that its sections show."""

    document: AuditDocument
    place: int  # from 1, as compared
    leaks: list[Leak]
    roles: list[str]
    terms: list[Term]  # that the matrix contains
    matrix: list[tuple[str, list[MatrixCell]]]
    anchors: list[str]  # of the trials, in order
    links: dict[str, str]  # a trial's id to its anchor
    plots: dict[str, Chart | None]
    alone: bool  # there is one point, and no other to compare it with
    trained: Markup  # how it learned and what it cost


def render(
    documents: Sequence[AuditDocument],
    histories: Sequence[RunHistory | None] = (),
    *,
    unaudited: Sequence[RunHistory] = (),
) -> str:
    """Write the page of one run or of several: the same documents give the same bytes.

    `histories`: the training of each audited run; `unaudited`: runs without an audit, with which
    the others' learning is compared.
    """
    if not documents:
        raise ValueError("a report is about one run at least")
    named = _anchors(documents)
    padded = [*histories, *[None] * (len(documents) - len(histories))]
    runs = [
        _run(document, place, anchors, _trained(history, place))
        for place, (document, anchors, history) in enumerate(
            zip(documents, named, padded, strict=True), start=1
        )
    ]
    context: dict[str, Any] = {"runs": runs, "style": Markup(STYLE.read_text(encoding="utf-8"))}  # noqa: S704
    context |= _compared(documents, [*unaudited, *(history for history in histories if history)])
    return _environment().get_template("template.html.j2").render(context)


def write_report(document: AuditDocument, folder: Path) -> None:
    """Write an audit's document and its page into its run's folder."""
    write_whole(folder / DOCUMENT, encode(document).decode())
    write_page([document], folder, [read_run_history(folder)])


def read_documents(runs: Sequence[Path]) -> list[AuditDocument]:
    """Read the documents of audited runs."""
    return [read(run / DOCUMENT) for run in runs]


def write_page(
    documents: Sequence[AuditDocument],
    folder: Path,
    histories: Sequence[RunHistory | None] = (),
    *,
    unaudited: Sequence[RunHistory] = (),
) -> Path:
    """Write the page of some audits into a folder; the arguments are those of `render`."""
    page = folder / PAGE
    write_whole(page, render(documents, histories, unaudited=unaudited))
    return page


def _trained(history: RunHistory | None, place: int) -> Markup:
    page = article(history, f"run{place}-trained", level=4) if history else ""
    return Markup(page)  # noqa: S704


def _compared(
    documents: Sequence[AuditDocument], histories: Sequence[RunHistory]
) -> dict[str, Any]:
    if len(documents) < 2:
        return {}
    together = report_tables.joint_points(documents)
    lines = [(what, compared_cells(documents, what)) for what in _comparable(documents)]
    return {
        "leaked": grouped(documents),
        "reconstructed": report_tables.reconstructed(documents),
        "terms_compared": _terms(cell for _, rows in lines for row in rows for cell in row),
        "learned": Markup(comparison(histories)) if len(histories) > 1 else None,  # noqa: S704
        "roles": _roles(documents),
        "compared": lines,
        "compared_runs": report_tables.runs(documents),
        "together": together,
        "plot": plots.accuracy_leakage(together, "all-accuracy"),
        "curve": trade_off.curve(documents, "all-epsilon"),
    }


def _terms(cells: Iterable[MatrixCell]) -> list[Term]:
    """List the terms that occur, in the legend's order."""
    used = {cell.term for cell in cells}
    return [term for term in (*ACCESS.values(), ABSENT) if term in used]


def _run(document: AuditDocument, place: int, anchors: list[str], trained: Markup) -> RunSection:
    roles = _roles([document])
    links: dict[str, str] = {}
    for trial, anchor in zip(document.trials, anchors, strict=True):
        links.setdefault(trial.id, anchor)
    limits = [part.budget for part in document.privacy if part.budget is not None]
    name = f"run{place}"
    known = [p for p in document.points if None not in (p.accuracy, p.leakage)]
    matrix = [(what, _line(document, what, roles)) for what in _kinds([document])]
    return RunSection(
        document=document,
        place=place,
        leaks=leaks(document),
        roles=roles,
        terms=_terms(cell for _, cells in matrix for cell in cells),
        matrix=matrix,
        anchors=anchors,
        links=links,
        plots={
            "accuracy": plots.accuracy_leakage(known, f"{name}-accuracy") if known[1:] else None,
            "roc": plots.roc(document.roc, f"{name}-roc"),
            "budget": plots.budget(document.budget, limits, f"{name}-budget"),
            "spectra": plots.spectra(document.spectra, f"{name}-spectra"),
        },
        alone=len(known) == 1,
        trained=trained,
    )


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,  # names of hospitals and of settings are data, never markup
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(sentences=sentences, tables=report_tables, safe=Markup)
    return environment


# --- the access matrix ----------------------------------------------------------------------------


def _roles(documents: Iterable[AuditDocument]) -> list[str]:
    return _once(
        cell.role for document in documents for row in document.matrix for cell in row.cells
    )


def _kinds(documents: Iterable[AuditDocument]) -> list[str]:
    return _once(row.what for document in documents for row in document.matrix)


def _comparable(documents: Sequence[AuditDocument]) -> list[str]:
    """List the rows that at least two audits have; other rows are in their run's own section."""
    every = [row for document in documents for row in _kinds([document])]
    return [what for what in _once(every) if every.count(what) > 1]


def _line(document: AuditDocument, what: str, columns: Sequence[str]) -> list[MatrixCell]:
    """Collect one row of the matrix: one kind of information, for every role."""
    trials = {trial.id: trial for trial in reversed(document.trials)}
    rows = (row for row in document.matrix if row.what == what)
    cells = {cell.role: cell for row in rows for cell in row.cells}
    return [_cell(cells.get(role), trials) for role in columns]


def compared_cells(documents: Sequence[AuditDocument], what: str) -> list[list[MatrixCell]]:
    """Collect one row of each run's matrix; where runs differ, every field is marked."""
    columns = _roles(documents)
    lines = [_line(document, what, columns) for document in documents]
    differs = [_differ(column) for column in zip(*lines, strict=True)]
    return [
        [cell._replace(differs=mark) for cell, mark in zip(row, differs, strict=True)]
        for row in lines
    ]


def _differ(column: Iterable[MatrixCell]) -> bool:
    """Compare the runs whose audits say anything."""
    return len({cell.term.word for cell in column} - {ABSENT.word}) > 1


def _anchors(documents: Sequence[AuditDocument]) -> list[list[str]]:
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
