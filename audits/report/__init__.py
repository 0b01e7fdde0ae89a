"""The audit's report: its document as JSON, and one page of one or several audits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from secure_fl.audits.document import AuditDocument, encode, read
from secure_fl.audits.report.page import render
from secure_fl.display.run_history import RunHistory, read_run_history
from secure_fl.files import write_whole

__all__ = ["read_documents", "render", "write_page", "write_report"]

DOCUMENT, PAGE = "audit.json", "report.html"


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
    stories: Sequence[RunHistory | None] = (),
    *,
    shared: bool = False,
    unaudited: Sequence[RunHistory] = (),
) -> Path:
    """Write the page of some audits into a folder; the arguments are those of `render`."""
    page = folder / PAGE
    write_whole(page, render(documents, stories, shared=shared, unaudited=unaudited))
    return page
