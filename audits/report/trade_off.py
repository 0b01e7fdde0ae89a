"""Attack success over ε for each run, compared with the largest success that ε allows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from secure_fl.audits.document import AuditDocument, TrialPart
from secure_fl.audits.report.report_tables import ReportTable
from secure_fl.audits.report.sentences import (
    NO_CURVE,
    OVER_EPSILON,
    VERDICTS,
    epsilon,
    number,
    verdict,
)
from secure_fl.audits.roles import PUBLIC
from secure_fl.display import html
from secure_fl.display.charts import SOFT, Chart, draw_svg, figure
from secure_fl.display.compare_page import EpsilonPoint, draw_over_epsilon, ends_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KIND = "membership"  # attacks that ask whether a record was trained on
UNITS = ("record", "patient")  # a promise for a hospital as a unit bounds no record's membership
DRAWN = ("leaks", "holds")  # an inconclusive attack is never drawn as no leakage


class AttackSuccess(NamedTuple):
    """The result of one membership attack on one run."""

    run: str
    attack: str
    epsilon: float | None  # None: without bound
    delta: float
    value: float | None
    interval: tuple[float, float] | None
    verdict: str

    @property
    def allowed(self) -> float:
        """The largest AUC that any attack can reach under this (ε, δ)."""
        return 1.0 if self.epsilon is None else largest_auc(self.epsilon, self.delta)

    @property
    def measured(self) -> str:
        """The AUC with its interval, as text."""
        if self.value is None:
            return "not measured"
        interval = "" if self.interval is None else " [{}, {}]".format(*map(number, self.interval))
        return number(self.value) + interval


class EpsilonCurve(NamedTuple):
    """The plot and the table of attack success over ε."""

    plot: Chart | None
    table: ReportTable


def largest_auc(epsilon: float, delta: float) -> float:
    """Compute the area under the best ROC curve that (ε, δ) allows.

    Above the curve lie max(0, 1 - δ - e^ε·x, (1 - δ - x)/e^ε) (Kairouz, Oh, Viswanath, arXiv
    1311.0776): two triangles that make (1 - δ)²/(1 + e^ε).
    """
    return 1 - (1 - delta) ** 2 / (1 + math.exp(min(epsilon, 700.0)))  # exp overflows above 709


def successes(
    documents: Sequence[AuditDocument], run_names: Sequence[str] = ()
) -> list[AttackSuccess]:
    """List every membership attack on every run, by ε.

    `run_names`: one for each document; default: number and name of the run.
    """
    run_names = run_names or [f"{n}. {d.run.name}" for n, d in enumerate(documents, start=1)]
    results = [
        AttackSuccess(
            name,
            trial.attack,
            *_record_bound(document),
            trial.deployed.value if trial.deployed else None,
            trial.deployed.interval if trial.deployed else None,
            verdict(trial),
        )
        for name, document in zip(run_names, documents, strict=True)
        for trial in _membership_trials(document)
    ]
    return sorted(results, key=lambda one: math.inf if one.epsilon is None else one.epsilon)


def _membership_trials(document: AuditDocument) -> Iterable[TrialPart]:
    return (t for t in document.trials if t.attack.startswith(KIND) and t.role == PUBLIC)


def _record_bound(document: AuditDocument) -> tuple[float | None, float]:
    """Return the tightest (ε, δ) that bounds a record; (None, 0) if there is none."""
    bounds = [p for p in document.privacy if p.unit in UNITS and p.epsilon is not None]
    if not bounds:
        return None, 0.0
    best = min(bounds, key=lambda part: math.inf if part.epsilon is None else part.epsilon)
    return best.epsilon, best.delta or 0.0


def allowed_line(
    results: Iterable[AttackSuccess], grid: Iterable[float]
) -> list[tuple[float, float]]:
    """Compute the largest AUC at each ε of a grid, under the largest δ of these results.

    Each result has its own δ, so the line is no lower than the bound of any of them.
    """
    delta = max((one.delta for one in results if one.epsilon is not None), default=0.0)
    return [(x, largest_auc(x, delta)) for x in grid]


def comparable(documents: Sequence[AuditDocument]) -> bool:
    """Return True if there is a curve to draw: at least two bounds on ε, or one and none."""
    promised = {_record_bound(one)[0] for one in documents if any(_membership_trials(one))}
    return len(promised) > 1


def curve(
    documents: Sequence[AuditDocument], name: str, run_names: Sequence[str] = ()
) -> EpsilonCurve | None:
    """Return the plot and the table, or None if these runs cannot be compared."""
    if not comparable(documents):
        return None
    return EpsilonCurve(plot(documents, name, run_names), table(documents, run_names))


def section(curve: EpsilonCurve, name: str) -> str:
    """Write the curve as a section of a page that compares trainings."""
    table = curve.table
    body = html.paragraph(OVER_EPSILON)
    body += figure(name, curve.plot) or html.paragraph(NO_CURVE)
    body += html.table(table.caption, table.header, table.rows, figures=table.figures)
    return html.section(name, table.caption, body)


def table(documents: Sequence[AuditDocument], run_names: Sequence[str] = ()) -> ReportTable:
    """Tabulate each attack on each run."""
    rows = [
        (
            one.run,
            epsilon(one.epsilon),
            one.attack,
            one.measured,
            "1" if one.epsilon is None else number(one.allowed),
            VERDICTS[one.verdict].word,
        )
        for one in successes(documents, run_names)
    ]
    header = ("Run", "ε", "Attack", "AUC [95 %]", "Most that ε allows", "Verdict")
    return ReportTable("Attack success over ε", header, rows)


def plot(
    documents: Sequence[AuditDocument], name: str, run_names: Sequence[str] = ()
) -> Chart | None:
    """Draw AUC over ε with intervals, below what ε allows; None: there is no verdict to draw."""
    results = successes(documents, run_names)
    known = [s for s in results if s.value is not None and s.verdict in DRAWN]
    bounded = sorted({s.epsilon for s in known if s.epsilon is not None})
    if not bounded or not comparable(documents):
        return None
    deltas = {s.delta for s in known if s.epsilon is not None}
    limit = "most that ε allows" + (f" with δ = {max(deltas):g}" if len(deltas) > 1 else "")
    lines: dict[str, list[EpsilonPoint]] = {}
    for one in sorted(known, key=lambda s: s.attack):  # stable: by ε
        point = EpsilonPoint(one.epsilon, one.value or 0.0, one.interval)
        lines.setdefault(one.attack, []).append(point)
    lowest = min([0.42, *(s.interval[0] for s in known if s.interval)])

    def draw(ax: Axes) -> None:
        low, high = ends_of(lines)
        grid = [low * (high / low) ** (k / 60) for k in range(61)]
        allowed = [auc for _, auc in allowed_line(known, grid)]
        ax.plot(grid, allowed, color=SOFT, lw=1, ls="--", label=limit)
        ax.axhline(0.5, color=SOFT, lw=1, ls=":", label="guessing")
        draw_over_epsilon(ax, lines)
        ax.set_ylim(lowest - 0.02, 1.02)
        ax.set_xlabel("ε of a record (none: without bound)")
        ax.set_ylabel("AUC of membership")

    text = "; ".join(f"{s.run}, {s.attack}: {s.measured}" for s in known)
    text += f". Dashed: {limit}" if len(deltas) > 1 else ""
    return Chart(draw_svg(draw, name), f"Attack success over ε. {text}.")
