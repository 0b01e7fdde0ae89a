"""Several runs beside each other: a line for each, and all as points of one plot."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from secure_fl.audits.document import AuditDocument, PointPart
from secure_fl.audits.report.report_tables import ReportTable
from secure_fl.audits.report.terms import epsilon, number, size


def points(documents: Sequence[AuditDocument]) -> tuple[PointPart, ...]:
    """The points of several runs: their own by the run's name, others once.

    A run without protection was deployed only to be compared with, and is not marked as deployed.
    """
    found: dict[tuple[object, ...], PointPart] = {}
    for place, document in enumerate(documents, start=1):
        for point in document.points:
            if point.deployed:
                label = f"{place}. {document.run.name}"
                protected = document.run.mode != "none"
                point = replace(point, label=label, deployed=protected)
            key = (point.label, point.accuracy, point.leakage, point.measure)
            found.setdefault(key, point)
    return tuple(found.values())


def runs(documents: Sequence[AuditDocument]) -> ReportTable:
    """One line for each run that is compared."""
    header = ("Run", "Protection", "Status", "Accuracy", "Leakage", "ε (largest)", "Bytes")
    rows = [
        (
            f"{place}. {document.run.name}",
            f"{document.run.algorithm}, {document.run.mode}",
            document.status,
            accuracy(document),
            leakage(document),
            largest_epsilon(document),
            size(sum(document.bytes.values())) if document.bytes else "not recorded",
        )
        for place, document in enumerate(documents, start=1)
    ]
    return ReportTable("The runs, one line each", header, rows)


def accuracy(document: AuditDocument) -> str:
    """The deployed run's accuracy."""
    known = [p.accuracy for p in document.points if p.deployed and p.accuracy is not None]
    return number(known[0]) if known else "not recorded"


def leakage(document: AuditDocument) -> str:
    """What the best attack recovers from the deployed run."""
    known = [(p.leakage, p.measure) for p in document.points if p.deployed]
    known = [(value, measure) for value, measure in known if value is not None]
    if not known:
        return "not measured"
    value, measure = max(known)
    return f"{number(value)}: {measure}"


def largest_epsilon(document: AuditDocument) -> str:
    """The largest privacy loss of all statements; none at all is no bound."""
    losses = [part.epsilon for part in document.privacy]
    known = [loss for loss in losses if loss is not None]
    return epsilon(max(known) if known and len(known) == len(losses) else None)
