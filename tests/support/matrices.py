"""Who reads what, as a matrix of an audit says."""

from __future__ import annotations

from secure_fl.audits.document import AuditDocument


def cells(document: AuditDocument, what: str) -> dict[str, str]:
    """Role -> its access, in one row."""
    row = next(row for row in document.matrix if row.what == what)
    return {cell.role: cell.access for cell in row.cells}
