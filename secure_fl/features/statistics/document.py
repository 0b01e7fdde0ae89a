"""Released tables as a document: counts, figures and curves, all computed from released counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import date, timedelta
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from secure_fl.features.statistics.codebook import Codebook, Survival, Variable
from secure_fl.features.statistics.counting import Flags, Integers, Tabulation
from secure_fl.features.statistics.release import Blocks, TableLayout, total_of

QUANTILES = (0.25, 0.5, 0.75)
REST = "(other or missing)"
MOST_NAMED = 3  # categories of a merged block that its label names


def document_of(
    codebook: Codebook,
    layouts: Mapping[str, TableLayout],
    tables: Sequence[Tabulation],
    hospitals: Sequence[str],
) -> dict[str, Any]:
    """Describe all tables; hidden counts are None."""
    total, noised = total_of(layouts), codebook.epsilon is not None
    small = not noised and total < codebook.least
    pairs = zip(layouts.items(), tables, strict=True)
    return {
        "status": "answered",
        "hospitals": len(hospitals),
        "records": None if small else max(total, 0),
        "smallest": None if noised else codebook.least,
        "epsilon": codebook.epsilon,
        "delta": codebook.delta if noised else None,
        "tables": [_table(codebook, name, layout, table) for (name, layout), table in pairs],
    }


def _table(codebook: Codebook, name: str, layout: TableLayout, table: Tabulation) -> dict[str, Any]:
    shown = np.where(table.shown, np.maximum(table.counts, 0), -1)
    counts = [None if value < 0 else int(value) for value in shown.ravel()]
    variables = [codebook.variables[one] for one in layout.scope]
    pairs = list(zip(variables, layout.blocks, strict=True))
    found: dict[str, Any] = {
        "name": name,
        "kind": "survival" if name in codebook.survival else "table",
        "variables": list(layout.scope),
        "labels": [labels_of(variable, blocks) for variable, blocks in pairs],
        "counts": _nested(counts, table.counts.shape),
        "figures": {},
        "curves": {},
        "notes": _notes(codebook, layout),
    }
    if name in codebook.survival:
        found |= _survival(codebook.survival[name], found, shown, pairs)
    elif len(pairs) == 1 and variables[0].values is None and not variables[0].dated:
        found["figures"] = _figures(variables[0], layout.blocks[0], shown)
    return found


def labels_of(variable: Variable, blocks: Blocks) -> list[str]:
    """Name the blocks of a variable's cells."""
    cells = blocks[:-1]
    found = []
    for block in range(max(blocks) + 1):
        inside = [cell for cell, own in enumerate(cells) if own == block]
        if not inside:
            found.append(REST)
        elif variable.values is not None:
            names = [variable.values[cell] for cell in inside]
            more = len(names) - MOST_NAMED
            named = names[:MOST_NAMED] + ([f"{more} more"] if more > 0 else [])
            found.append(" or ".join(named))
        else:
            found.append(_interval(variable, inside[0], inside[-1]))
    return found


def _interval(variable: Variable, first: int, last: int) -> str:
    points = variable.points
    low = None if first == 0 else _edge(variable, points[first - 1])
    high = None if last == len(points) else _edge(variable, points[last])
    if low is None:
        return "all" if high is None else f"below {high}"
    return f"{low} and above" if high is None else f"{low} to {high}"


def _edge(variable: Variable, value: float) -> str:
    if variable.dated:
        return str(date(1970, 1, 1) + timedelta(days=value))
    return f"{value:g}"


def _notes(codebook: Codebook, layout: TableLayout) -> list[str]:
    found = []
    for name, blocks in zip(layout.scope, layout.blocks, strict=True):
        *cells, rest = blocks
        if rest in cells:
            label = labels_of(codebook.variables[name], blocks)[rest]
            found.append(
                f"{name}: {label} includes records with other or missing values, if there are any"
            )
    return found


def _figures(variable: Variable, blocks: Blocks, shown: Integers) -> dict[str, float]:
    """Compute mean, standard deviation and quantiles from the released bins.

    Each bin is uniform. Open bins end at the first and the last edge.
    """
    cells = np.array(blocks[:-1])
    size = int(cells.max()) + 1
    counts = shown[:size].astype(float)
    if (counts < 0).any() or counts.sum() == 0 or len(variable.points) < 2:
        return {}
    edges = np.array([variable.points[0], *variable.points, variable.points[-1]])
    low = np.array([edges[np.flatnonzero(cells == b)[0]] for b in range(size)])
    high = np.array([edges[np.flatnonzero(cells == b)[-1] + 1] for b in range(size)])
    weights, middles = counts / counts.sum(), (low + high) / 2
    mean = float(weights @ middles)
    variance = float(weights @ ((middles - mean) ** 2 + (high - low) ** 2 / 12))
    found = {"mean": mean, "standard deviation": math.sqrt(variance)}
    ends = np.cumsum(weights)
    for share in QUANTILES:
        at = int(np.searchsorted(ends, share - 1e-12))
        inside = (share - (ends[at] - weights[at])) / weights[at]
        found[f"{share:.0%} quantile"] = float(low[at] + inside * (high[at] - low[at]))
    return {name: round(value, 6) for name, value in found.items()}


def _survival(
    curves: Survival,
    found: Mapping[str, Any],
    shown: Integers,
    pairs: Sequence[tuple[Variable, Blocks]],
) -> dict[str, Any]:
    """Compute one curve for each group whose counts are all released, if the event has a block."""
    cube, labels = (shown, found["labels"][0]) if curves.group else (shown[None], ["all"])
    (time, of_time), (event, of_event) = pairs[-2], pairs[-1]
    steps = max(of_time[:-1]) + 1
    happened = of_event[(event.values or ()).index(curves.happened)]
    if of_event[:-1].count(happened) > 1:  # all in the block would count as events
        why = f"few records have some values of {curves.event}, so {curves.happened!r} is counted"
        return {"notes": [*found["notes"], f"no curve: {why} with others; list fewer values"]}
    cells = np.array(of_time[:-1])
    last = np.array([np.flatnonzero(cells == step)[-1] for step in range(steps)])
    times = np.array([*time.points, time.points[-1]])[last]
    closed = np.array([(cells[1:-1] == step).sum() for step in range(steps)])
    merged = closed > 1  # the open first and last bins have no length
    hidden = (cube[:, :steps] < 0).any((1, 2))
    events = cube[:, :steps, happened]
    left = cube[:, :steps].sum(2) - events
    result: dict[str, Any] = {"curves": {}, "figures": {}, "notes": list(found["notes"])}
    for place in np.flatnonzero(~hidden):
        curve = kaplan_meier(times, events[place], left[place], merged)
        label = labels[place]
        points = zip([0.0, *times.tolist()], [1.0, *curve.survival.tolist()], strict=True)
        result["curves"][label] = [list(point) for point in points]
        result["figures"][f"{label}: patients"] = float(curve.at_risk[0])
        result["figures"][f"{label}: events"] = float(curve.events.sum())
        if curve.median is not None:
            result["figures"][f"{label}: median"] = curve.median
    test = log_rank(events[~hidden], left[~hidden])
    if test is not None:
        result["figures"] |= {"log-rank statistic": test.statistic, "log-rank p": test.p}
    if names := ", ".join(np.array(labels)[hidden]):
        result["notes"].append(f"no curve, for counts are hidden: {names}")
    if merged.any():
        result["notes"].append(f"times are merged into {steps} steps, as in a life table")
    return result


def _nested(values: list[Any], shape: Sequence[int]) -> Any:
    if len(shape) == 1:
        return values
    step = len(values) // shape[0]
    return [_nested(values[k * step : (k + 1) * step], shape[1:]) for k in range(shape[0])]


Floats = NDArray[np.float64]


class SurvivalCurve(NamedTuple):
    """One group's survival after each step of the grid."""

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
    """Count the patients under observation at each time; the last axis is time."""
    ended = events + left
    return ended[..., ::-1].cumsum(-1)[..., ::-1]


def kaplan_meier(times: Floats, events: Integers, left: Integers, merged: Flags) -> SurvivalCurve:
    """Compute S(t) = ∏ (1 - d/n) over times up to t; in merged steps n - c/2 replaces n."""
    n = at_risk(events, left)
    exposed = n - np.where(merged, left / 2, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        steps = np.where(n > 0, 1 - events / exposed, 1.0)
    return SurvivalCurve(times, n, events, np.cumprod(steps.astype(float)))


def log_rank(events: Integers, left: Integers) -> LogRankTest | None:
    """Compare groups (rows) over times (columns): Z'V⁻¹Z is χ² with one degree less than groups."""
    from scipy.special import chdtrc  # scipy.stats takes a second to import

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
    return LogRankTest(statistic, groups - 1, float(chdtrc(groups - 1, statistic)))
