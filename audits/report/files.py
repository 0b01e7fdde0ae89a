"""A report's files: the document, its page, its Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from secure_fl.audits.document import AuditDocument, encode, read
from secure_fl.audits.report.markdown import markdown
from secure_fl.audits.report.page import render
from secure_fl.errors import RunError

DOCUMENT, PAGE, TEXT = "audit.json", "report.html", "report.md"


def keep(document: AuditDocument, folder: Path) -> None:
    """Write an audit's document and its pages into its run's folder."""
    _write(folder / DOCUMENT, encode(document))
    write_pages([document], folder)


def read_all(runs: Sequence[Path]) -> list[AuditDocument]:
    """The documents of audited runs."""
    return [read(run / DOCUMENT) for run in runs]


def write_pages(documents: Sequence[AuditDocument], folder: Path) -> tuple[Path, Path]:
    """Write the report of some documents into a folder."""
    page, text = folder / PAGE, folder / TEXT
    _write(page, render(documents).encode())
    _write(text, markdown(documents).encode())
    return page, text


def _write(file: Path, data: bytes) -> None:
    """Write whole or not at all."""
    partial = file.with_name(f".{file.name}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(data)
        partial.replace(file)
    except OSError as error:
        raise RunError(f"the file cannot be written ({error.strerror})", file=file) from error
