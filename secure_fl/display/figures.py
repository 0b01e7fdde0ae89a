"""Numbers formatted for people, and lookups in a result's document."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from rich.filesize import decimal

from secure_fl.events import metric_name as metric_name

# A copy from the registry, which would load torch for a table of runs.
WITHOUT_SUMS: Mapping[str, str] = MappingProxyType({"local": "-", "centralized": "POOLED"})
TRULY = "truly "  # before a class in the names of counts, as in learning.metric_counts
ALL = "all"  # name of counts over different label sets, as in learning.metric_counts
LOCAL = "local/"  # prefix of the splits of models that hospitals keep for themselves


def size(count: float) -> str:
    """Format a number of bytes."""
    return decimal(round(count))


def duration(seconds: float) -> str:
    """Format a duration in seconds, minutes or hours."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def counted(count: int, noun: str) -> str:
    """Format a number with its noun: "1 round", "3 rounds"."""
    return f"{count} {noun}{'s' * (count != 1)}"


def number(value: float | None) -> str:
    """Format a metric."""
    return "-" if value is None else f"{value:.3f}"


def confusion_rows(document: Mapping[str, Any], counts: Mapping[str, Any]) -> dict[str, Any]:
    """Collect a confusion matrix's rows by class, in the order of its columns; {}: no matrix.

    The counts themselves are sorted by name.
    """
    labels = document.get("task", {}).get("labels") or ()
    return {name: counts[TRULY + name] for name in labels if TRULY + name in counts}


def main_metric(document: Mapping[str, Any]) -> str:
    """Format the name of a result's main metric."""
    return metric_name(document.get("main_metric", ""), document.get("scored_class"))


def protection(algorithm: str, mode: str) -> str:
    """Return the protection of a run's sums; "-" for an algorithm without sums."""
    return WITHOUT_SUMS.get(algorithm, "NONE" if mode == "none" else mode)


def metric_of(document: Mapping[str, Any], which: str, split: str, party: str = "") -> float | None:
    """Look up a result's main metric, of a party or of all; None if it was not measured.

    Of all: pooled over all records, or the parties' mean if scores were not pooled. A party
    with its own model besides the run's is judged by its own.
    """
    found = of_round(document, which)
    metric = document.get("main_metric", "")
    scores = found.get("party", {}).get(party, {}) if party else overall(found, metric)
    own = scores.get(LOCAL + split, {}) if party else {}
    value: float | None = scores.get(split, own).get(metric)
    return value


def of_round(document: Mapping[str, Any], which: str) -> Mapping[str, Any]:
    """Return the metrics of a result's "last", "best" or "delivered" round; empty without any.

    Delivered are the models of the last round, or with `training.patience` those of the best.
    """
    if which == "delivered":
        last, best = (of_round(document, name).get("round") for name in ("last", "best"))
        delivers_best = best is not None and best == document.get("model_round") != last
        which = "best" if delivers_best else "last"
    found: Mapping[str, Any] = document.get("metrics", {}).get(which, {})
    return found


def interval_of(document: Mapping[str, Any]) -> tuple[float, float] | None:
    """Look up the interval of the main metric over all hospitals' test records, delivered round."""
    intervals = of_round(document, "delivered").get("intervals", {}).get("test", {})
    found = intervals.get(document.get("main_metric"))
    return None if found is None else (float(found[0]), float(found[1]))


def overall(found: Mapping[str, Any], metric: str) -> Mapping[str, Any]:
    """Return the scores of a round over all hospitals: pooled scores, or else their mean.

    Pooled scores over different label sets lack the metric of one class, which the mean has.
    """
    pooled: Mapping[str, Any] = found.get("pooled") or {}
    differ = any(ALL in counts for counts in found.get("counts", {}).values())
    lacks = differ and not any(metric in scores for scores in pooled.values())
    mean: Mapping[str, Any] = found.get("mean", {})
    return pooled if pooled and not lacks else mean


def traffic(document: Mapping[str, Any], party: str = "") -> tuple[float, float]:
    """Sum a result's sent and received bytes, of a party or of all."""
    found = document.get("bytes", {})
    parts = [found.get(party, {})] if party else list(found.values())
    return sum(p.get("up", 0) for p in parts), sum(p.get("down", 0) for p in parts)
