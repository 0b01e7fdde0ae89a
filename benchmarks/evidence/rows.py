"""Rows of a table: one method on one data set over all seeds, computed from finished cells."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from benchmarks.evidence.cells import Outcome
from benchmarks.evidence.store import Finished, place_of
from secure_fl.algorithms.registry import ALGORITHMS

FP32 = 4  # bytes
Values = Mapping[int, float]  # by seed


@dataclass(frozen=True, slots=True)
class Row:
    """One model of one method; a run with several models has several rows."""

    group: str
    data: str
    method: str
    model: str  # empty for the only one
    note: str
    outcomes: Mapping[int, Outcome]  # by seed
    plain_bytes: float | None  # of FedAvg of the whole model in fp32, both ways

    @property
    def first(self) -> Outcome:
        """The outcome with the lowest seed."""
        return next(iter(self.outcomes.values()))

    @property
    def name(self) -> str:
        """The method, with the model if there are several."""
        return f"{self.method} [{self.model}]" if self.model else self.method

    @property
    def bytes(self) -> float:
        """Bytes up and down of one party: the mean over parties and seeds."""
        sent = [party for outcome in self.outcomes.values() for party in outcome["bytes"].values()]
        return fmean(party["up"] + party["down"] for party in sent)

    @property
    def times_less(self) -> float | None:
        """The factor by which FedAvg of the whole model in fp32 sends more."""
        return self.plain_bytes / self.bytes if self.plain_bytes else None

    def mean(self, name: str) -> float:
        """Average one of the outcomes' plain figures over seeds."""
        return fmean(outcome[name] for outcome in self.outcomes.values())

    def parties(self, tier: str = "") -> set[str]:
        """Return the parties, or those of a tier."""
        return {name for name, own in self.first["parties"].items() if not tier or own == tier}

    def tested(self) -> set[str]:
        """Return the parties that measured test records."""
        return set(self.first["metrics"]["last"]["party"])

    def values(
        self,
        split: str = "test",
        which: str = "last",
        figure: str = "",
        parties: Collection[str] = (),
    ) -> Values:
        """Look up one figure with each seed; nothing if a seed lacks it.

        `figure`: the main metric by default. `parties`: the mean over these, instead of over all.
        """
        found: dict[int, float] = {}
        for seed, outcome in self.outcomes.items():
            value = self._value(outcome, split, which, figure or outcome["metric"], parties)
            if value is None:
                return {}
            found[seed] = value
        return found

    def _value(
        self, outcome: Outcome, split: str, which: str, figure: str, parties: Collection[str]
    ) -> float | None:
        metrics = outcome["metrics"][which]
        name = f"{self.model}/{split}" if self.model else split
        places = [metrics["party"].get(party, {}) for party in sorted(parties)]
        listed = [p[name][figure] for p in places if figure in p.get(name, {})]
        if listed:
            return fmean(listed)
        value: float | None = metrics["mean"].get(name, {}).get(figure)
        return value

    def document(self) -> dict[str, Any]:
        """Lay out the row for a JSON document."""
        scores = {
            which: {split: spread(self.values(split, which)) for split in ("dev", "test")}
            for which in ("last", "best")
        }
        return {
            **{name: getattr(self, name) for name in ("group", "data", "method", "model", "note")},
            "seeds": list(self.outcomes),
            **{name: self.first[name] for name in ("rounds", "parties", "records", "metric")},
            **scores,
            "bytes": {"both": self.bytes, "times_less": self.times_less},
            **{name: self.mean(name) for name in ("seconds", "cpu_seconds", "privacy_share")},
            **{name: self.first[name] for name in ("algorithm", "protection")},
        }


def rows(finished: Sequence[Finished], reference: str | None) -> list[Row]:
    """Collect the rows of finished cells.

    `reference` names the method that trains the whole model: bytes are compared with its updates
    as fp32 values, sent and received once a round.
    """
    places: dict[tuple[str, str, str], dict[int, Finished]] = {}
    for cell, outcome in finished:
        places.setdefault(place_of(cell), {})[cell.seed] = (cell, outcome)
    whole: dict[tuple[str, int], int] = {}
    for (_, data, method), by_seed in places.items():
        if method == reference:
            first = next(iter(by_seed.values()))[1]
            whole[data, first["rounds"]] = first["values"]
    listed = []
    for (group, data, method), by_seed in places.items():
        cell, first = next(iter(by_seed.values()))
        note = "; ".join(text for text in (cell.note, first["caveat"]) if text)
        values = whole.get((data, first["rounds"]))
        silent = ALGORITHMS[first["algorithm"]["name"]].sums_nothing
        plain = 2.0 * FP32 * values * first["rounds"] if values and not silent else None
        outcomes = {seed: outcome for seed, (_, outcome) in by_seed.items()}
        listed += [
            Row(group, data, method, model, note, outcomes, plain) for model in models_of(first)
        ]
    return listed


def models_of(outcome: Outcome) -> list[str]:
    """List the measured models, by the prefix of their splits."""
    splits = outcome["metrics"]["last"]["mean"]
    return list(dict.fromkeys(split.rpartition("/")[0] for split in splits))


def spread(values: Values) -> dict[str, Any] | None:
    """Compute mean and standard deviation over seeds."""
    if not values:
        return None
    listed = list(values.values())
    sd = stdev(listed) if len(listed) > 1 else None
    return {"mean": fmean(listed), "sd": sd, "values": listed}


def shown(values: Values) -> str:
    """Format a mean times 100, with its standard deviation if there is one."""
    found = spread(values)
    if found is None:
        return ""
    sd = "" if found["sd"] is None else f" ± {100 * found['sd']:.1f}"
    return f"{100 * found['mean']:.1f}{sd}"


def three(value: float) -> str:
    """Format a number with three significant digits: 0.28, 6.94, 75.6, 597, 1,590."""
    if value == 0:
        return "0"
    rounded = float(f"{value:.3g}")
    decimals = max(0, 3 - len(str(int(rounded))))
    return f"{rounded:,.{decimals}f}"
