"""The audit's report, of one run or of several side by side: its document, page and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from secure_fl.audits.document import AuditDocument, encode, read
from secure_fl.audits.report.markdown import markdown
from secure_fl.audits.report.page import render
from secure_fl.display.run_history import RunHistory, read_run_history
from secure_fl.files import write_whole

__all__ = ["keep", "markdown", "read_all", "render", "write_pages"]

DOCUMENT, PAGE, TEXT = "audit.json", "report.html", "report.md"


def keep(document: AuditDocument, folder: Path) -> None:
    """Write an audit's document and its pages into its run's folder."""
    write_whole(folder / DOCUMENT, encode(document).decode())
    write_pages([document], folder, [read_run_history(folder)])


def read_all(runs: Sequence[Path]) -> list[AuditDocument]:
    """The documents of audited runs."""
    return [read(run / DOCUMENT) for run in runs]


def write_pages(
    documents: Sequence[AuditDocument],
    folder: Path,
    stories: Sequence[RunHistory | None] = (),
    *,
    shared: bool = False,
    beside: Sequence[RunHistory] = (),
) -> tuple[Path, Path]:
    """Write the report of some documents into a folder; `stories`: of their runs' training.

    `beside`: of runs that were not audited, which the others' learning is compared with.
    """
    page, text = folder / PAGE, folder / TEXT
    write_whole(page, render(documents, stories, shared=shared, beside=beside))
    write_whole(text, markdown(documents))
    return page, text
