"""The report as one HTML page that loads nothing: no network, no script, no font."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from secure_fl.audits.document import AuditDocument
from secure_fl.audits.report import (
    matrix_cells,
    plots,
    report_tables,
    sentences,
    terms,
    trade_off,
)
from secure_fl.display.charts import Chart
from secure_fl.display.comparing import comparison
from secure_fl.display.html import STYLE
from secure_fl.display.run_page import article
from secure_fl.display.story import Story

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
    plots: dict[str, Chart | None]
    alone: bool  # there is one point, and no other to compare it with
    trained: Markup  # how it learned and what it cost


def render(
    documents: Sequence[AuditDocument],
    stories: Sequence[Story | None] = (),
    *,
    shared: bool = False,
    unaudited: Sequence[Story] = (),
) -> str:
    """Write the page of one run or of several: the same documents give the same bytes.

    `stories`: the training of each audited run; `unaudited`: runs without an audit, with which
    the others' learning is compared; `shared`: leave out figures of a single hospital.
    """
    if not documents:
        raise ValueError("a report is about one run at least")
    named = matrix_cells.anchors(documents)
    padded = [*stories, *[None] * (len(documents) - len(stories))]
    runs = [
        _run(document, place, anchors, _trained(story, place, shared))
        for place, (document, anchors, story) in enumerate(
            zip(documents, named, padded, strict=True), start=1
        )
    ]
    context: dict[str, Any] = {"runs": runs, "style": Markup(STYLE.read_text(encoding="utf-8"))}  # noqa: S704
    context |= _compared(documents, [*unaudited, *(story for story in stories if story)])
    return _environment().get_template("template.html.j2").render(context)


def _trained(story: Story | None, place: int, shared: bool) -> Markup:
    return Markup(article(story, f"run{place}-trained", shared=shared, level=4) if story else "")  # noqa: S704


def _compared(documents: Sequence[AuditDocument], stories: Sequence[Story]) -> dict[str, Any]:
    """Collect what the section on several runs shows."""
    if len(documents) < 2:
        return {}
    together = report_tables.joint_points(documents)
    return {
        "learned": Markup(comparison(stories)) if len(stories) > 1 else None,  # noqa: S704
        "roles": matrix_cells.roles(documents),
        "compared": [
            (what, matrix_cells.compared(documents, what))
            for what in matrix_cells.comparable(documents)
        ],
        "compared_runs": report_tables.runs(documents),
        "together": together,
        "plot": plots.accuracy_leakage(together, "all-accuracy"),
        "curve": trade_off.curve(documents, "all-epsilon"),
    }


def _run(document: AuditDocument, place: int, anchors: list[str], trained: Markup) -> RunSection:
    roles = matrix_cells.roles([document])
    links: dict[str, str] = {}
    for trial, anchor in zip(document.trials, anchors, strict=True):
        links.setdefault(trial.id, anchor)
    limits = [part.budget for part in document.privacy if part.budget is not None]
    name = f"run{place}"
    known = [p for p in document.points if None not in (p.accuracy, p.leakage)]
    return RunSection(
        document=document,
        place=place,
        roles=roles,
        matrix=[
            (what, matrix_cells.line(document, what, roles))
            for what in matrix_cells.kinds([document])
        ],
        anchors=anchors,
        links=links,
        contradictions=sentences.contradictions(document),
        plots={
            "accuracy": plots.accuracy_leakage(known, f"{name}-accuracy") if known[1:] else None,
            "roc": plots.roc(document.roc, f"{name}-roc"),
            "budget": plots.budget(document.budget, limits, f"{name}-budget"),
            "traffic": plots.traffic(document.traffic, f"{name}-traffic"),
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
    environment.globals.update(terms=terms, sentences=sentences, tables=report_tables, safe=Markup)
    return environment
