"""Renders the report as one HTML page that needs nothing else: no network, no script, no font."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from secure_fl.audits.document import AuditDocument
from secure_fl.audits.report import (
    comparison,
    matrix_cells,
    plots,
    report_tables,
    sentences,
    terms,
    trade_off,
)
from secure_fl.audits.report.sentences import contradictions
from secure_fl.display.compare_page import comparison as learned
from secure_fl.display.html import STYLE
from secure_fl.display.run_history import RunHistory
from secure_fl.display.run_page import article

HERE = Path(__file__).parent


class RunSection(NamedTuple):
    """One run, with all that its sections show."""

    document: AuditDocument
    place: int  # from 1, as compared
    roles: list[str]
    matrix: list[tuple[str, list[matrix_cells.MatrixCell]]]
    anchors: list[str]  # of the trials, in order
    links: dict[str, str]  # a trial's id to its anchor
    contradictions: list[str]
    plots: dict[str, plots.Plot | None]
    alone: bool  # one point is known, and no other to hold it against
    trained: Markup = Markup("")  # how it learned and what it cost


def render(
    documents: Sequence[AuditDocument],
    stories: Sequence[RunHistory | None] = (),
    *,
    shared: bool = False,
    beside: Sequence[RunHistory] = (),
) -> str:
    """The page, of one run or of several: the same documents give the same bytes.

    `stories`: what their folders tell of the training, which stands behind each audit; `beside`:
    of runs without an audit, which the others' learning is compared with.
    """
    if not documents:
        raise ValueError("a report is about one run at least")
    named = matrix_cells.anchors(documents)
    trained = [
        Markup(article(story, f"run{place}-trained", shared=shared, level=4) if story else "")  # noqa: S704
        for place, story in enumerate([*stories, *[None] * (len(documents) - len(stories))], 1)
    ]
    runs = [
        _run(document, place, anchors)._replace(trained=trained[place - 1])
        for place, (document, anchors) in enumerate(zip(documents, named, strict=True), start=1)
    ]
    several = len(documents) > 1
    together = comparison.points(documents) if several else ()
    told = [*beside, *(story for story in stories if story)]
    context: dict[str, Any] = {
        "runs": runs,
        "learned": Markup(learned(told)) if several and len(told) > 1 else None,  # noqa: S704
        "roles": matrix_cells.roles(documents),
        "compared": [
            (what, matrix_cells.compared(documents, what))
            for what in matrix_cells.comparable(documents)
        ],
        "compared_runs": comparison.runs(documents),
        "together": together,
        "plot": plots.accuracy_leakage(together, "all-accuracy") if several else None,
        "curve": trade_off.curve(documents, "all-epsilon"),
        "style": Markup(STYLE.read_text(encoding="utf-8")),  # noqa: S704
    }
    return _environment().get_template("template.html.j2").render(context)


def _run(document: AuditDocument, place: int, anchors: list[str]) -> RunSection:
    roles = matrix_cells.roles([document])
    rows = [
        (what, matrix_cells.line(document, what, roles)) for what in matrix_cells.kinds([document])
    ]
    links: dict[str, str] = {}
    for trial, anchor in zip(document.trials, anchors, strict=True):
        links.setdefault(trial.id, anchor)
    limits = [part.budget for part in document.privacy if part.budget is not None]
    name = f"run{place}"
    known = [p for p in document.points if None not in (p.accuracy, p.leakage)]
    drawn = {
        "accuracy": plots.accuracy_leakage(known, f"{name}-accuracy") if len(known) > 1 else None,
        "roc": plots.roc(document.roc, f"{name}-roc"),
        "budget": plots.budget(document.budget, limits, f"{name}-budget"),
        "traffic": plots.traffic(document.traffic, f"{name}-traffic"),
        "spectra": plots.spectra(document.spectra, f"{name}-spectra"),
    }
    return RunSection(
        document,
        place,
        roles,
        rows,
        anchors,
        links,
        contradictions(document),
        drawn,
        len(known) == 1,
    )


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,  # names of parties and of settings are data, never markup
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(words=terms, say=sentences, tables=report_tables, safe=Markup)
    return environment
