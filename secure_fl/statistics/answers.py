"""Answers computed from opened sums, as pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import date, timedelta
from itertools import groupby
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from secure_fl.statistics.counting import ABOVE, BELOW, MISSING, cells, grain
from secure_fl.statistics.questions import (
    Categories,
    CrossTable,
    Histogram,
    Question,
    Survival,
)
from secure_fl.statistics.suppression import WITHHELD

Integers = NDArray[np.int64]
Status = Literal["answered", "withheld", "refused"]
QUANTILES = (0.25, 0.5, 0.75)


@dataclass(frozen=True)
class Answer:
    """The released answer to one question."""

    name: str
    kind: str
    status: Status
    said: tuple[str, ...] = ()  # the reason of a refusal, and notes on the figures
    total: int | None = None  # records the question is about, withheld ones too
    counts: tuple[tuple[str, int | None], ...] = ()  # None: withheld
    heads: tuple[str, ...] = ()  # of a table's columns
    rows: tuple[tuple[str, tuple[int | None, ...]], ...] = ()  # of a table
    figures: tuple[tuple[str, float], ...] = ()
    curves: tuple[tuple[str, tuple[tuple[float, float], ...]], ...] = ()  # label, points
    hospitals: int = 0
    unit: str = "records"  # unit of thresholds
    question: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)


@dataclass(frozen=True)
class Sums:
    """The opened sums of one question, and the part that may be released."""

    records: Integers
    blocks: Integers
    moments: Integers  # empty where none are released
    rounding: int = 1
    noised: bool = False

    @property
    def sizes(self) -> dict[int, int]:
        """The released number of records in each block; withheld ones together."""
        found = np.zeros(self.blocks.max() + 2, np.int64)
        np.add.at(found, self.blocks + 1, self.records)
        present = np.unique(self.blocks)
        return {int(block): self.rounded(found[block + 1]) for block in present}

    def rounded(self, count: int | np.integer[Any]) -> int:
        """A count as it leaves: a multiple, and never below nothing."""
        return max(0, round(int(count) / self.rounding) * self.rounding)

    @property
    def total(self) -> int:
        """All records the question is about."""
        return sum(self.sizes.values())


def answered(question: Question, sums: Sums, base: Answer) -> Answer:
    """The answer that these sums allow."""
    if (sums.blocks == WITHHELD).all():
        return base
    match question:
        case Categories():
            return _categories(question, sums, base)
        case Histogram():
            return _histogram(question, sums, base)
        case CrossTable():
            return _table(question, sums, base)
        case Survival():
            return _survival(question, sums, base)
        case _:
            return _with(base, total=sums.total, counts=(("records", sums.total),))


def sketched(base: Answer, sums: Sums, count: float, error: float) -> Answer:
    """How many different words, by a sketch."""
    full = "the sketch is full: ask again with more buckets"
    said = full if math.isinf(count) else f"estimated; standard error {error:.0f}"
    figures = () if math.isinf(count) else (("different words", round(count)), ("±", round(error)))
    return _with(base, total=sums.total, figures=figures, said=(*base.said, said))


def twice(base: Answer, sums: Sums, found: int | None, chance: float) -> Answer:
    """How many records are at another hospital, too."""
    if found is None:
        return base
    figures = (("records that another hospital holds", float(found)),)
    said = f"about {chance:.1g} of them by chance: records that share all their buckets"
    return _with(base, total=sums.total, figures=figures, said=(*base.said, said))


def _with(base: Answer, **changes: Any) -> Answer:
    return Answer(**{**vars(base), "status": "answered", **changes})


def _categories(question: Categories, sums: Sums, base: Answer) -> Answer:
    labels = [*question.values, "(others)", "(none)"]
    sizes = sums.sizes
    counts = tuple(
        (label, None if block == WITHHELD else sizes[block])
        for label, block in zip(labels, sums.blocks.tolist(), strict=True)
    )
    return _with(base, total=sums.total, counts=counts)


def _table(question: CrossTable, sums: Sums, base: Answer) -> Answer:
    heads = (*question.column_values, "(others or none)")
    grid = sums.blocks.reshape(-1, len(heads)).tolist()
    sizes = sums.sizes
    rows = tuple(
        (label, tuple(None if block == WITHHELD else sizes[block] for block in line))
        for label, line in zip((*question.row_values, "(others or none)"), grid, strict=True)
    )
    return _with(base, total=sums.total, heads=heads, rows=rows)


def _histogram(question: Histogram, sums: Sums, base: Answer) -> Answer:
    low, high = question.edges
    edges = np.linspace(low, high, question.bins + 1)
    bins = list(_runs(sums.blocks[: question.bins]))
    sizes, n = sums.sizes, cells(question)
    counts: list[tuple[str, int | None]] = []
    spans: list[tuple[float, float, int]] = []
    for block, start, end in bins:
        size = None if block == WITHHELD else sizes[block]
        name = f"{_edge(question, edges[start])} to {_edge(question, edges[end])}"
        counts.append((name, size))
        spans.append((edges[start], edges[end], size or 0))
    for label, at in (("below", BELOW), ("above", ABOVE), ("(none)", MISSING)):
        block = int(sums.blocks[n + at])
        counts.append((label, None if block == WITHHELD else sizes[block]))
    figures, said = _summary(question, sums, spans)
    points = tuple(
        point for a, b, size in spans for point in ((a, size / (b - a)), (b, size / (b - a)))
    )
    return _with(
        base,
        total=sums.total,
        counts=tuple(counts),
        figures=figures,
        curves=((question.field, points),),
        said=(*base.said, *said),
    )


def _summary(
    question: Histogram, sums: Sums, spans: Sequence[tuple[float, float, int]]
) -> tuple[tuple[tuple[str, float], ...], tuple[str, ...]]:
    """Mean and variance, exactly if they may be, and quantiles to the bin."""
    shown = sum(size for *_, size in spans)
    if not shown:
        return (), ()
    figures: list[tuple[str, float]]
    if sums.moments.size:
        n, unit = int(sums.records[: question.bins].sum()), grain(question)
        first, second = (int(one) for one in sums.moments)
        mean = question.edges[0] + unit * first / n
        variance = unit**2 * (second - first * first / n) / (n - 1) if n > 1 else 0.0
        said = [f"mean and variance of the {n} records in the range, rounded to {unit:g}"]
    else:
        middles = np.array([(a + b) / 2 for a, b, _ in spans])
        weights = np.array([size for *_, size in spans], float)
        mean = float(weights @ middles / shown)
        variance = float(weights @ (middles - mean) ** 2 / shown)
        said = ["mean and variance from the middles of bins that are shown"]
    figures = [("mean", mean), ("standard deviation", math.sqrt(max(variance, 0.0)))]
    widest = 0.0
    ends = np.cumsum([size for *_, size in spans])
    for share in QUANTILES:
        at = int(np.searchsorted(ends, share * shown, side="left"))
        a, b, size = spans[at]
        inside = (share * shown - (ends[at] - size)) / size if size else 0.0
        figures.append((f"{share:.0%} quantile", float(a + inside * (b - a))))
        widest = max(widest, b - a)
    said.append(f"quantiles lie in their bin: off by less than {widest:g}")
    return tuple((name, round(value, 6)) for name, value in figures), tuple(said)


def _survival(question: Survival, sums: Sums, base: Answer) -> Answer:
    groups, times = len(question.groups), question.steps + 1
    of_cell = sums.blocks[:-1].reshape(groups, times, 2)
    hidden = (of_cell == WITHHELD).any((1, 2))
    sizes = sums.sizes
    ends, tables = _by_time(sums, of_cell, sizes, hidden)
    at, merged = ends * question.step, np.diff(ends, prepend=-1) > 1
    curves, figures = [], list[tuple[str, float]]()
    for place, label in enumerate(question.groups):
        if hidden[place]:
            continue
        curve = kaplan_meier(at, tables[place, :, 1], tables[place, :, 0], merged)
        curves.append((label, tuple(_steps(curve))))
        figures.append((f"{label}: patients", float(curve.at_risk[0])))
        figures.append((f"{label}: events", float(curve.events.sum())))
        if curve.median is not None:
            figures.append((f"{label}: median", curve.median))
    test = log_rank(tables[~hidden, :, 1], tables[~hidden, :, 0])
    if test is not None:
        figures += [("log-rank statistic", test.statistic), ("log-rank p", test.p)]
    said = list(base.said)
    if hidden.any():
        said.append("withheld: " + ", ".join(np.array(question.groups)[hidden].tolist()))
    if len(ends) < times:
        said.append(f"times are merged into {len(ends)} steps, as in a life table")
    return _with(
        base, total=sums.total, figures=tuple(figures), curves=tuple(curves), said=tuple(said)
    )


def _by_time(
    sums: Sums, of_cell: Integers, sizes: dict[int, int], hidden: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], Integers]:
    """The last time of each step, and [group, step, (left, event)] as released."""
    shown = np.flatnonzero(~hidden)
    guide = of_cell[shown[0], :, 0] if shown.size else np.zeros(of_cell.shape[1], np.int64)
    runs = list(_runs(guide))
    ends = np.array([end - 1 for _, _, end in runs], float)
    table = np.zeros((len(of_cell), len(runs), 2), np.int64)
    for group in shown:
        for step, (_, start, _) in enumerate(runs):
            table[group, step] = [sizes[int(block)] for block in of_cell[group, start]]
    return ends, table


def _runs(blocks: Integers) -> Iterator[tuple[int, int, int]]:
    """Cells in a row of one block: the block, its first cell, and the one behind its last."""
    start = 0
    for block, run in groupby(blocks.tolist()):
        end = start + len(list(run))
        yield block, start, end
        start = end


def _steps(curve: SurvivalCurve) -> Iterator[tuple[float, float]]:
    """A curve as it is drawn, from (0, 1) on, where it changes and at its end."""
    yield 0.0, 1.0
    before = 1.0
    for time, value in zip(curve.times.tolist(), curve.survival.tolist(), strict=True):
        if value != before or time == curve.times[-1]:
            yield time, before
            yield time, value
        before = value


def _edge(question: Histogram, value: float) -> str:
    if question.dated:
        return str(date(1970, 1, 1) + timedelta(days=float(value)))
    return f"{value:g}"


Floats = NDArray[np.float64]


class SurvivalCurve(NamedTuple):
    """One group's survival, after each time at which something happened to anybody."""

    times: Floats
    at_risk: Integers
    events: Integers
    survival: Floats

    @property
    def median(self) -> float | None:
        """The first time at which at most half survive."""
        below = self.times[self.survival <= 0.5]
        return float(below[0]) if below.size else None


class LogRankTest(NamedTuple):
    """Result of a test for a difference between groups."""

    statistic: float
    degrees: int
    p: float


def at_risk(events: Integers, left: Integers) -> Integers:
    """How many are watched just before each time; the last axis is time."""
    gone = events + left
    return gone[..., ::-1].cumsum(-1)[..., ::-1]


def kaplan_meier(
    times: Floats, events: Integers, left: Integers, merged: NDArray[np.bool_]
) -> SurvivalCurve:
    """S(t) = ∏ (1 - d/n) over times up to t; in merged steps n - c/2 replaces n."""
    n = at_risk(events, left)
    exposed = n - np.where(merged, left / 2, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.where(n > 0, 1 - events / exposed, 1.0)
    return SurvivalCurve(times, n, events, np.cumprod(steps.astype(float)))


def log_rank(events: Integers, left: Integers) -> LogRankTest | None:
    """Compare groups (rows) over times (columns): Z'V⁻¹Z is χ² with one degree less than groups."""
    from scipy.stats import chi2

    n = at_risk(events, left).astype(float)
    d = events.astype(float)
    n, d = n[n.sum(1) > 0], d[n.sum(1) > 0]
    happened = d.sum(0) > 0
    n, d = n[:, happened], d[:, happened]
    groups, all_n, all_d = len(n), n.sum(0), d.sum(0)
    if groups < 2 or not happened.any():
        return None
    Z = (d - n * all_d / all_n).sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(all_n > 1, all_d * (all_n - all_d) / (all_n - 1), 0.0) / all_n**2
    V = np.diag((factor * all_n * n).sum(1)) - (factor * n) @ n.T
    Z, V = Z[:-1], V[:-1, :-1]
    if np.linalg.matrix_rank(V) < groups - 1:
        return None
    statistic = float(Z @ np.linalg.solve(V, Z))
    return LogRankTest(statistic, groups - 1, float(chi2.sf(statistic, groups - 1)))
