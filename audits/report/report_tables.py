"""The report's figures as plain tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from msgspec.structs import replace

from secure_fl.audits.attacks.reading import CODEBOOKS, EVALUATION, ONE, SUM
from secure_fl.audits.document import (
    BAG,
    AuditDocument,
    FindingPart,
    PointPart,
    RocPart,
    SeriesPart,
    TrialPart,
)
from secure_fl.audits.report.sentences import (
    STATUS,
    VERDICTS,
    epsilon,
    number,
    ordered,
    plain,
    positions,
    shortened,
    verdict,
)
from secure_fl.audits.roles import COORDINATOR
from secure_fl.display.figures import counted, size


class ReportTable(NamedTuple):
    """A caption, a header and rows of text; the first column names the row."""

    caption: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    figures: bool = False  # all columns but the first hold numbers


RATES = (0.1, 0.01, 0.001)


def points(items: Sequence[PointPart]) -> ReportTable:
    """Tabulate accuracy and leakage."""
    deployed = {True: " (deployed)", False: ""}
    rows = [
        (p.label + deployed[p.deployed], _known(p.accuracy), _known(p.leakage), p.measure)
        for p in items
    ]
    header = ("Run", "Accuracy", "Leakage", "Measured as")
    return ReportTable("Accuracy and leakage", header, rows)


def _known(value: float | None) -> str:
    return "not measured" if value is None else number(value)


def joint_points(documents: Sequence[AuditDocument]) -> tuple[PointPart, ...]:
    """Collect the points of several runs: deployed runs under their own names, others once.

    A run without protection was deployed for comparison only, and is not marked as deployed.
    """
    unique: dict[tuple[object, ...], PointPart] = {}
    for place, document in enumerate(documents, start=1):
        for point in document.points:
            if point.deployed:
                label = f"{place}. {document.run.name}"
                point = replace(point, label=label, deployed=document.run.mode != "none")
            key = (point.label, point.accuracy, point.leakage, point.measure)
            unique.setdefault(key, point)
    return tuple(unique.values())


def reconstructed(documents: Sequence[AuditDocument]) -> ReportTable:
    """Tabulate what the coordinator reconstructed of each run; the demo prints this table."""
    header = ("Run", "One hospital's update", "The sum", "Which words occur", "Limits")
    rows = [
        (
            document.run.name,
            *(_correlated(of_coordinator(document, name)) for name in (ONE, SUM)),
            _words(of_coordinator(document, BAG)),
            STATUS[document.status].word,
        )
        for document in documents
    ]
    caption = "What the coordinator reconstructed: correlation with the truth, 1 is all of it"
    return ReportTable(caption, header, rows)


def of_coordinator(document: AuditDocument, attack: str) -> FindingPart | None:
    """Look up what an attack found in the coordinator's view of the deployed run."""
    found = (t.deployed for t in document.trials if (t.attack, t.role) == (attack, COORDINATOR))
    return next(found, None)


def _correlated(finding: FindingPart | None) -> str:
    if finding is None:
        return "not tested"
    word = "read" if finding.succeeded else "noise"
    return "nothing" if finding.value is None else f"{word} ({finding.value:.2f})"


def _words(finding: FindingPart | None) -> str:
    """Format how many of the right words were found, and how many a guess finds."""
    if finding is None:
        return "not tested"
    if finding.value is None:
        return "nothing"
    return f"{100 * finding.value:.0f} %, guessing: {100 * finding.chance:.0f} %"


PROTECTIONS = {"none": "none", "secagg": "masks", "he+secagg": "encryption and masks"}


def runs(documents: Sequence[AuditDocument]) -> ReportTable:
    """Tabulate the accuracy, the privacy budget and the traffic of the compared runs."""
    header = ("Run", "Protection", "Accuracy", "Privacy budget spent (ε)", "Sent and received")
    rows = [
        (
            f"{place}. {document.run.name}",
            f"{document.run.algorithm}, {PROTECTIONS.get(document.run.mode, document.run.mode)}",
            accuracy(document),
            largest_epsilon(document),
            size(sum(document.bytes.values())) if document.bytes else "not recorded",
        )
        for place, document in enumerate(documents, start=1)
    ]
    return ReportTable("The audited runs, one line each", header, rows)


def accuracy(document: AuditDocument) -> str:
    """Format the deployed run's accuracy."""
    known = [p.accuracy for p in document.points if p.deployed and p.accuracy is not None]
    return number(known[0]) if known else "not recorded"


def largest_epsilon(document: AuditDocument) -> str:
    """Format the largest privacy loss of all statements; without a statement there is no bound."""
    losses = [part.epsilon for part in document.privacy]
    known = [loss for loss in losses if loss is not None]
    return epsilon(max(known) if known and len(known) == len(losses) else None)


def trials(document: AuditDocument) -> ReportTable:
    """Tabulate all trials, one line each."""
    header = ("Trial", "Whose view", "Verdict", "Unprotected", "Deployed", "Null", "Guessing")
    rows = [(*_trial(one), _guess(one)) for one in document.trials]
    return ReportTable("All trials, one line each", header, rows)


def counts(document: AuditDocument) -> ReportTable:
    """Tabulate the trials of codebooks and evaluations."""
    kinds = (CODEBOOKS, EVALUATION)
    rows = [_trial(t) for t in document.trials if t.attack.partition(":")[0] in kinds]
    header = ("Looked for", "By whom", "Verdict", "Unprotected", "Here", "Null")
    return ReportTable("Codebooks and evaluations at made-up hospitals", header, rows)


def _trial(trial: TrialPart) -> tuple[str, ...]:
    word = VERDICTS[verdict(trial)].word
    return (trial.attack, trial.role, word, *map(value, _three(trial)))


def _guess(trial: TrialPart) -> str:
    known = trial.deployed or trial.control or trial.null
    return rate(known.chance) if known else "none"


def _three(trial: TrialPart) -> tuple[FindingPart | None, ...]:
    return (trial.control, trial.deployed, trial.null)


def value(finding: FindingPart | None) -> str:
    """Format a finding's value."""
    if finding is None:
        return "not run"
    return "nothing to work on" if finding.value is None else rate(finding.value)


def rate(value: float) -> str:
    """Format a figure of a column: most are from 0 to 1, and have three places."""
    return f"{value:.3f}" if value == 0 or 0.001 <= abs(value) <= 1 else number(value)


FINDING_LINES: Mapping[str, Callable[[FindingPart], str]] = {
    "About": lambda f: f.target,
    "Measure": lambda f: f.measure,
    "Value": value,
    "95 % interval": lambda f: " to ".join(map(number, f.interval)) if f.interval else "none",
    "Guessing gives": lambda f: number(f.chance),
    "Success from": lambda f: number(f.threshold),
    "Succeeded": lambda f: "yes" if f.succeeded else "no",
    "Sample size n": lambda f: number(f.samples),
    "Evidence": lambda f: positions(f.evidence),
    "Note": lambda f: f.note,
    "Details": lambda f: shortened(plain(f.details)) if f.details else "",
}


def findings(trial: TrialPart) -> ReportTable:
    """Tabulate control, deployed and null of one trial, side by side."""
    rows = []
    for name, form in FINDING_LINES.items():
        cells = [form(finding) if finding else "not run" for finding in _three(trial)]
        if any(cell not in ("", "not run") for cell in cells) or name == "Value":
            rows.append((name, *cells))
    header = ("", "Unprotected (control)", "Deployed", "Null")
    return ReportTable(f"Findings of {trial.attack}, {trial.role}", header, rows)


def budget(document: AuditDocument) -> ReportTable:
    """Tabulate what each ledger had spent at the end."""
    rows = [
        (curve.label, number(curve.x[-1]), number(curve.y[-1]))
        for curve in document.budget
        if curve.x and curve.y
    ]
    return ReportTable("Privacy loss at the end", ("Ledger", "Last round", "ε spent"), rows, True)


def spectra(document: AuditDocument) -> ReportTable:
    """Tabulate how few singular values hold most of each matrix."""
    rows = []
    for curve in document.spectra:
        if curve.y:
            holds = [f"{needed(curve, part):,}" for part in (0.9, 0.95, 0.99)]
            rows.append((curve.label, f"{len(curve.y):,}", *holds))
    header = ("Matrix", "Singular values", "for 90 % of the energy", "for 95 %", "for 99 %")
    return ReportTable("Singular values that are needed", header, rows, True)


def roc(document: AuditDocument) -> ReportTable:
    """Tabulate each membership attack's curve in four figures."""
    rows = [(c.label, number(area(c)), *_rates(c)) for c in document.roc if c.fpr]
    header = ("Attack", "AUC", *(f"TPR at {rate:.4g} FPR" for rate in RATES))
    return ReportTable("Membership attacks (guessing: AUC 0.5, TPR = FPR)", header, rows, True)


def _rates(curve: RocPart) -> list[str]:
    finest = resolution(curve)
    return [
        number(rate_at(curve, rate)) if finest <= rate else "too few non-members" for rate in RATES
    ]


def scores(document: AuditDocument) -> ReportTable:
    """Tabulate the run's accuracy, as its result has it."""
    rows = [(name, number(score)) for name, score in ordered(document.accuracy)]
    return ReportTable("Scores of the run", ("Score", "Value"), rows, True)


def facts(caption: str, items: Mapping[str, Any]) -> ReportTable:
    """Tabulate names and values of any mapping."""
    rows = [(name, plain(fact)) for name, fact in ordered(items)]
    return ReportTable(caption, ("Name", "Value"), rows)


def sources(document: AuditDocument) -> ReportTable:
    """Tabulate what a reader needs to repeat the run."""
    run = document.run
    cohort = (
        f"{counted(len(run.parties), 'hospital')}, a sum needs {run.threshold}, "
        f"and no sum is over fewer than {run.min_cohort}"
    )
    rows = [("Seed", str(run.seed)), ("Rounds", str(run.rounds)), ("Cohort", cohort)]
    rows += [(f"Version of {name}", text) for name, text in ordered(run.versions)]
    rows += [(f"Machine: {name}", plain(text)) for name, text in ordered(run.machine)]
    return ReportTable("Seed, versions and machine", ("Name", "Value"), rows)


def steps(curve: RocPart) -> list[tuple[float, float]]:
    """Sort the curve's finite points, from (0, 0) to (1, 1)."""
    known = zip(curve.fpr, curve.tpr, strict=False)
    inner = {(x, y) for x, y in known if math.isfinite(x) and math.isfinite(y)}
    return sorted({(0.0, 0.0), (1.0, 1.0)} | inner)


def area(curve: RocPart) -> float:
    """Compute the area under the curve, by trapezoids."""
    return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in pairwise(steps(curve)))


def rate_at(curve: RocPart, fpr: float) -> float:
    """Find the best true positive rate at no more than this false positive rate."""
    return max(y for x, y in steps(curve) if x <= fpr)


def resolution(curve: RocPart) -> float:
    """Find the smallest false positive rate above zero on the curve: one non-member's."""
    return min((x for x, _ in steps(curve) if x > 0), default=1.0)


def finite(curve: SeriesPart) -> list[tuple[float, float]]:
    """List the finite points of a series."""
    known = zip(curve.x, curve.y, strict=False)
    return [(x, y) for x, y in known if math.isfinite(x) and math.isfinite(y)]


def needed(spectrum: SeriesPart, part: float) -> int:
    """Count the largest singular values that hold this part of the energy (FedKD, Fig. 6)."""
    shares = [y for _, y in finite(spectrum)]
    return next((k for k, share in enumerate(shares, start=1) if share >= part), len(shares))
