"""The report's figures as plain tables, the same on the page and in Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from secure_fl.audits.attacks.counts import EVALUATION, QUESTIONS
from secure_fl.audits.document import AuditDocument, FindingPart, PointPart, RocPart, TrialPart
from secure_fl.audits.report.curves import area, needed, rate_at, resolution
from secure_fl.audits.report.sentences import verdict
from secure_fl.audits.report.terms import (
    VERDICTS,
    count,
    duration,
    number,
    ordered,
    plain,
    positions,
    shortened,
    size,
)


class ReportTable(NamedTuple):
    """A caption, a header and rows of text; the first column names the row."""

    caption: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    figures: bool = False  # all columns but the first hold numbers


RATES = (0.1, 0.01, 0.001)


def points(items: Sequence[PointPart]) -> ReportTable:
    """Accuracy beside leakage."""
    deployed = {True: " (deployed)", False: ""}
    rows = [
        (p.label + deployed[p.deployed], _known(p.accuracy), _known(p.leakage), p.measure)
        for p in items
    ]
    return ReportTable("Accuracy and leakage", ("Run", "Accuracy", "Leakage", "Measured as"), rows)


def _known(value: float | None) -> str:
    return "not measured" if value is None else number(value)


def trials(document: AuditDocument) -> ReportTable:
    """All trials, one line each."""
    header = ("Trial", "Whose view", "Verdict", "Unprotected", "Deployed", "Null", "Guessing")
    return ReportTable(
        "All trials, one line each", header, [_trial(one) for one in document.trials]
    )


def _trial(trial: TrialPart) -> tuple[str, ...]:
    chance = trial.deployed or trial.control or trial.null
    said = map(value, _three(trial))
    guess = rate(chance.chance) if chance else "none"
    return (trial.attack, trial.role, VERDICTS[verdict(trial)].word, *said, guess)


def asked(document: AuditDocument) -> ReportTable:
    """What roles read of questions and evaluations, and what answers tell when subtracted."""
    mine = [t for t in document.trials if t.attack.partition(":")[0] in (QUESTIONS, EVALUATION)]
    rows = [
        (one.attack, one.role, VERDICTS[verdict(one)].word, *map(value, _three(one)))
        for one in mine
    ]
    header = ("Looked for", "By whom", "Verdict", "Unprotected", "Here", "Null")
    return ReportTable("Questions and evaluations at made-up hospitals", header, rows)


def _three(trial: TrialPart) -> tuple[FindingPart | None, ...]:
    return (trial.control, trial.deployed, trial.null)


def value(finding: FindingPart | None) -> str:
    """What a finding came to, as short as possible."""
    if finding is None:
        return "not run"
    return "nothing to work on" if finding.value is None else rate(finding.value)


def rate(value: float) -> str:
    """A figure below others in a column: most are from 0 to 1, and have three places."""
    return f"{value:.3f}" if value == 0 or 0.001 <= abs(value) <= 1 else number(value)


def findings(trial: TrialPart) -> ReportTable:
    """Control, deployed and null of one trial, side by side."""
    three = _three(trial)
    lines: dict[str, Callable[[FindingPart], str]] = {
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
    rows = []
    for name, say in lines.items():
        cells = [say(finding) if finding else "not run" for finding in three]
        if any(cell not in ("", "not run") for cell in cells) or name == "Value":
            rows.append((name, *cells))
    header = ("", "Unprotected (control)", "Deployed", "Null")
    return ReportTable(f"Findings of {trial.attack}, {trial.role}", header, rows)


def budget(document: AuditDocument) -> ReportTable:
    """What each ledger had spent at the end."""
    rows = [
        (curve.label, number(curve.x[-1]), number(curve.y[-1]))
        for curve in document.budget
        if curve.x and curve.y
    ]
    return ReportTable("Privacy loss at the end", ("Ledger", "Last round", "ε spent"), rows, True)


def traffic(document: AuditDocument) -> ReportTable:
    """Bytes of each curve in all."""
    rows = [
        (curve.label, size(sum(curve.y)), size(sum(curve.y) / len(curve.y)))
        for curve in document.traffic
        if curve.y
    ]
    return ReportTable("Bytes over all rounds", ("Curve", "In all", "Per round"), rows, True)


def spectra(document: AuditDocument) -> ReportTable:
    """How few singular values hold most of each matrix."""
    rows = []
    for curve in document.spectra:
        if curve.y:
            holds = [f"{needed(curve, part):,}" for part in (0.9, 0.95, 0.99)]
            rows.append((curve.label, f"{len(curve.y):,}", *holds))
    header = ("Matrix", "Singular values", "for 90 % of the energy", "for 95 %", "for 99 %")
    return ReportTable("Singular values that are needed", header, rows, True)


def roc(document: AuditDocument) -> ReportTable:
    """Each membership attack's curve in four figures."""
    rows = [(c.label, number(area(c)), *_rates(c)) for c in document.roc if c.fpr]
    header = ("Attack", "AUC", *(f"TPR at {rate:.4g} FPR" for rate in RATES))
    return ReportTable("Membership attacks (guessing: AUC 0.5, TPR = FPR)", header, rows, True)


def _rates(curve: RocPart) -> list[str]:
    finest = resolution(curve)
    return [
        number(rate_at(curve, rate)) if finest <= rate else "too few non-members" for rate in RATES
    ]


def seconds(document: AuditDocument) -> ReportTable:
    """Where the time went."""
    rows = [(phase, duration(spent)) for phase, spent in ordered(document.seconds)]
    return ReportTable("Time", ("Phase", "Spent"), rows, True)


def volumes(document: AuditDocument) -> ReportTable:
    """How many bytes crossed the wires."""
    rows = [(what, size(sent), f"{sent:,}") for what, sent in ordered(document.bytes)]
    return ReportTable("Bytes", ("What", "Size", "Bytes"), rows, True)


def scores(document: AuditDocument) -> ReportTable:
    """The run's accuracy, as its result has it."""
    rows = [(name, number(score)) for name, score in ordered(document.accuracy)]
    return ReportTable("Scores of the run", ("Of", "Value"), rows, True)


def facts(caption: str, items: Mapping[str, Any]) -> ReportTable:
    """Names and values of any mapping."""
    return ReportTable(caption, ("Name", "Value"), [(name, plain(v)) for name, v in ordered(items)])


def sources(document: AuditDocument) -> ReportTable:
    """What a reader needs to run this again."""
    run = document.run
    cohort = (
        f"{count(len(run.parties), 'party', 'parties')}, a sum needs {run.threshold}, "
        f"and no sum is over fewer than {run.min_cohort}"
    )
    rows = [("Seed", str(run.seed)), ("Rounds", str(run.rounds)), ("Cohort", cohort)]
    rows += [(f"Version of {name}", text) for name, text in ordered(run.versions)]
    rows += [(f"Machine: {name}", plain(text)) for name, text in ordered(run.machine)]
    return ReportTable("Seed, versions and machine", ("Name", "Value"), rows)
