"""From finished cells to a table's rows: means and standard deviations over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean, stdev
from typing import Any

from rich.table import Table

from benchmarks.evidence.cells import Cell, Outcome
from benchmarks.report import table
from secure_fl.algorithms.registry import ALGORITHMS

Row = dict[str, Any]

FP32 = 4  # bytes of a value that nothing compresses
FEW = 6  # parties that fit into a table side by side
FIGURES = ("loss", "auroc", "average_precision")  # that claims may be about, beside the score
COLUMNS = (
    "method",
    "test, best dev round",
    "test, last round",
    "dev, last round",
    "MB a party",
    "of fp32 FedAvg",
    "seconds",
    "privacy",
    "seeds",
)


@dataclass(frozen=True, slots=True)
class Scores:
    """Which of a result's scores: of which model (empty: the only one), round and party."""

    model: str
    metric: str

    def of(self, outcome: Outcome, which: str, split: str, party: str = "") -> float | None:
        """Find one figure; `None` where it was not measured."""
        found = outcome["metrics"][which]
        found = found["party"].get(party, {}) if party else found["mean"]
        name = f"{self.model}/{split}" if self.model else split
        value: float | None = found.get(name, {}).get(self.metric)
        return value


def rows(finished: Sequence[tuple[Cell, Outcome]], reference: str | None) -> list[Row]:
    """One row for each method on each data set, and for each model that it leaves behind.

    `reference` names the method that trains the whole model: bytes are compared with what its
    updates would take as fp32 values, sent and received once a round.
    """
    found: dict[tuple[str, str, str], list[tuple[Cell, Outcome]]] = {}
    for cell, outcome in finished:
        found.setdefault((cell.group, cell.data, cell.method), []).append((cell, outcome))
    whole = {
        (data, outcomes[0][1]["rounds"]): outcomes[0][1]["values"]
        for (_, data, method), outcomes in found.items()
        if method == reference
    }
    listed = []
    for (group, data, method), several in found.items():
        cells, outcomes = [c for c, _ in several], [o for _, o in several]
        first = outcomes[0]
        titles = {"group": group, "data": data, "method": method, "mark": _mark(cells[0], first)}
        shared = {
            "seeds": [cell.seed for cell in cells],
            "rounds": first["rounds"],
            "parties": first["parties"],
            "records": first["records"],
            "metric": first["metric"],
            "bytes": _traffic(outcomes, whole.get((data, first["rounds"]))),
            "seconds": spread([outcome["seconds"] for outcome in outcomes]),
            "cpu_seconds": spread([outcome["cpu_seconds"] for outcome in outcomes]),
            "privacy_share": spread([outcome["privacy_share"] for outcome in outcomes]),
            "leakage": next((o["leakage"] for o in outcomes if o.get("leakage")), {}),
            "spectra": [o["spectra"] for o in outcomes if "spectra" in o],
            "algorithm": first["algorithm"],
            "protection": first["protection"],
            "settings": first["settings"],
        }
        listed += [
            titles
            | {"model": model}
            | {figure: _figures(model, figure, outcomes) for figure in FIGURES}
            | _measured(Scores(model, first["metric"]), outcomes)
            | shared
            for model in models_of(first)
        ]
    return listed


def _figures(model: str, figure: str, outcomes: Sequence[Outcome]) -> list[float]:
    """The last round's figure on test records with each seed; none if it was not kept of all."""
    found = [Scores(model, figure).of(outcome, "last", "test") for outcome in outcomes]
    there = [value for value in found if value is not None]
    return there if len(there) == len(outcomes) else []


def _mark(cell: Cell, outcome: Outcome) -> str:
    """What a reader must know: of the table's choice, and of the algorithm itself."""
    return "; ".join(text for text in (cell.mark, outcome["caveat"]) if text)


def models_of(outcome: Outcome) -> list[str]:
    """The models that were measured, by the names that their splits carry."""
    splits = outcome["metrics"]["last"]["mean"]
    return list(dict.fromkeys(split.rpartition("/")[0] for split in splits))


def _measured(scores: Scores, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    parties = outcomes[0]["metrics"]["last"]["party"]

    def over_seeds(which: str, split: str, party: str = "") -> dict[str, Any] | None:
        values = [scores.of(outcome, which, split, party) for outcome in outcomes]
        there = [value for value in values if value is not None]
        return spread(there) if len(there) == len(outcomes) else None

    return {
        which: {split: over_seeds(which, split) for split in ("dev", "test")}
        | {"party": {party: over_seeds(which, "test", party) for party in parties}}
        for which in ("last", "best")
    }


def _traffic(outcomes: Sequence[Outcome], values: int | None) -> dict[str, Any]:
    """Bytes of one party, heads of messages included: the mean over parties and seeds."""
    each = [party for outcome in outcomes for party in outcome["bytes"].values()]
    up, down = fmean(party["up"] for party in each), fmean(party["down"] for party in each)
    found: dict[str, Any] = {"up": up, "down": down, "both": up + down}
    if values and not ALGORITHMS[outcomes[0]["algorithm"]["name"]].sums_nothing:
        plain = 2 * FP32 * values * outcomes[0]["rounds"]
        found |= {"fp32_fedavg": plain, "times_less": plain / (up + down)}
    return found


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean, standard deviation (of two or more) and the values themselves."""
    sd = stdev(values) if len(values) > 1 else None
    return {"mean": fmean(values), "sd": sd, "values": list(values)}


def tables(listed: Sequence[Row]) -> list[Table]:
    """Lay out rows: for each group and data set one table, and one of the parties if few."""
    laid = []
    for (group, data), found in groupby(listed, key=lambda row: (row["group"], row["data"])):
        here = list(found)
        title = f"{group}: {data}" if group else data
        main = table(f"{title}\n{describe(here)}", COLUMNS, [_cells(row) for row in here])
        marks = dict.fromkeys(row["mark"] for row in here if row["mark"])
        main.caption, main.caption_justify = "\n".join(f"* {mark}" for mark in marks), "left"
        laid.append(main)
        if 1 < len(here[0]["parties"]) <= FEW:
            laid.append(_by_party(title, here))
    return laid


def describe(listed: Sequence[Row]) -> str:
    """Say on what rows were measured."""
    parts = dict.fromkeys(part for row in listed for part in row["records"])
    records = ", ".join(
        counted((row["records"].get(part, 0) for row in listed), part) for part in parts
    )
    parties = counted((len(row["parties"]) for row in listed), "parties", "party")
    rounds = counted((row["rounds"] for row in listed), "rounds", "round")
    metric = listed[0]["metric"]
    return f"{metric} x 100; {parties}; {records} records; {rounds}, mean ± sd over seeds"


def counted(counts: Iterable[int], what: str, one: str = "") -> str:
    """How many there are, as a range where rows differ."""
    low, high = min(found := list(counts)), max(found)
    number = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    return f"{number} {one or what if high == 1 else what}"


def _cells(row: Row) -> list[str]:
    less = row["bytes"].get("times_less")
    return [
        _name(row),
        shown(row["best"]["test"]),
        shown(row["last"]["test"]),
        shown(row["last"]["dev"]),
        f"{row['bytes']['both'] / 1e6:.2f}",
        f"1/{less:.1f}" if less else "",
        f"{row['seconds']['mean']:.0f}",
        f"{100 * row['privacy_share']['mean']:.1f} %",
        str(len(row["seeds"])),
    ]


def _by_party(title: str, here: Sequence[Row]) -> Table:
    parties = here[0]["parties"]
    heads = [party if tier is None else f"{party} ({tier})" for party, tier in parties.items()]
    cells = [[_name(row), *(shown(row["best"]["party"].get(p)) for p in parties)] for row in here]
    return table(f"{title}, by party: test at the best dev round", ["method", *heads], cells)


def _name(row: Row) -> str:
    model = f" [{row['model']}]" if row["model"] else ""
    return f"{row['method']}{model}{'*' if row['mark'] else ''}"


def three(value: float) -> str:
    """A number of which three digits count: 0.28, 6.94, 75.6, 597, 1,590."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.3g}")
    decimals = max(0, 3 - len(str(int(rounded))))
    return f"{rounded:,.{decimals}f}"


def shown(score: Mapping[str, Any] | None) -> str:
    """Show a mean, and its standard deviation where there is one."""
    if score is None:
        return "-"
    sd = "" if score["sd"] is None else f" ± {100 * score['sd']:.1f}"
    return f"{100 * score['mean']:.1f}{sd}"
