"""The result of a run: last and best metrics, mean and per party, bytes, seconds, versions."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from math import inf
from statistics import fmean
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from secure_fl.events import Counts, EventLog

SCHEMA = "secure-fl/result/1"
PACKAGES = (
    "sealed-federation", "torch", "transformers", "tenseal", "opacus", "peft", "cryptography",
    "numpy",
)  # fmt: skip

PROTECTING = ("seal", "unmask", "open")

N = TypeVar("N", int, float)
Scores = dict[str, dict[str, float]]  # split -> metric -> value
Pool = Callable[[Sequence[Counts]], dict[str, float]]


class Reader(Protocol):
    """Interface of tasks that compute metrics from counts."""

    def intervals(self, counts: dict[str, NDArray[Any]]) -> Mapping[str, tuple[float, float]]:
        """Compute 95 % intervals of metrics."""

    def bounds(self, counts: dict[str, NDArray[Any]]) -> Mapping[str, tuple[float, float]]:
        """Compute bounds of metrics of binned scores."""


def summarise(
    recorders: Sequence[EventLog],
    metric: str,
    pool: Pool | None = None,
    reader: Reader | None = None,
    *,
    best: int | None = None,
    own: bool = True,
) -> dict[str, Any]:
    """Summarise metrics of the last round, and of the round with the best dev metric.

    The dev metric is the pooled one in rounds that have it, else the parties' mean.
    `pool`: computes metrics from the sum of counts, if the recorders are all hospitals'.
    `reader`: computes intervals and bounds of pooled metrics. `best`: the best round if the run has
    chosen it; a party that joined later has no metrics of it. None: by the dev metric.
    `own`: with figures of single parties.
    """
    numbers = sorted({entry["round"] for r in recorders for entry in r.history})
    if not numbers:
        return {}
    chosen = () if best is None else (best,)
    rounds = {n: _round(recorders, n, pool, own=own) for n in {*numbers, *chosen}}
    best = _best(rounds, metric) if best is None else best
    shown = {n: rounds[n] | _sure(rounds[n], reader) for n in {numbers[-1], best}}
    return {"last": shown[numbers[-1]], "best": dict(shown[best])}


def _best(rounds: Mapping[int, Mapping[str, Any]], metric: str) -> int:
    """Find the first round with the best dev metric; without any, the last one."""
    for kind in ("pooled", "mean"):
        dev = {n: found[kind].get("dev", {}).get(metric) for n, found in rounds.items()}
        if judged := {n: value for n, value in dev.items() if value is not None}:
            break
    return max(judged, key=lambda n: (judged[n], -n)) if judged else max(rounds)


def _sure(found: Mapping[str, Any], reader: Reader | None) -> dict[str, Any]:
    """Compute intervals and bounds of a round's pooled metrics, by split."""
    if reader is None:
        return {}
    counts = {
        split: {name: np.asarray(vector) for name, vector in vectors.items()}
        for split, vectors in found["counts"].items()
    }
    return {
        "intervals": {split: _lists(reader.intervals(one)) for split, one in counts.items()},
        "bounds": {split: _lists(reader.bounds(one)) for split, one in counts.items()},
    }


def _lists(found: Mapping[str, tuple[float, float]]) -> dict[str, list[float]]:
    """Convert arrays to lists for JSON."""
    return {name: list(pair) for name, pair in found.items()}


def to_use(delivered: Collection[str], scores: Mapping[str, Any], metric: str) -> str | None:
    """Choose the best of a party's models by the pooled dev metric of a round.

    Without that metric, or if they are equal, the first one: FedKD's student before its teachers.
    """
    if len(delivered) < 2:
        return None
    pooled = scores.get("pooled", {})

    def dev(name: str) -> float:
        split = "dev" if name == "model" else f"{name}/dev"
        score: float = pooled.get(split, {}).get(metric, -inf)
        return score

    return max(delivered, key=dev)


def _round(
    recorders: Sequence[EventLog], number: int, pool: Pool | None, *, own: bool
) -> dict[str, Any]:
    party: dict[str, Scores] = {}
    pooled: Scores = {}
    sums: dict[str, Counts] = {}
    counted: dict[str, list[Counts]] = {}
    for recorder in recorders:
        for entry in recorder.history:
            if entry["round"] == number:
                values = {k: v for k, v in entry.items() if isinstance(v, float)}
                split = "/".join(filter(None, (entry.get("model"), entry["split"])))
                if "pooled" in entry:
                    pooled[split] = values
                    sums |= {split: entry["counts"]} if "counts" in entry else {}
                    continue
                if not own:
                    continue
                party.setdefault(entry.get("party", recorder.party), {})[split] = values
                counted.setdefault(split, []).append(entry["counts"])
    if pool is not None:
        pooled = {split: pool(parts) for split, parts in counted.items()} | pooled
        sums = {split: _summed(parts) for split, parts in counted.items()} | sums
    mean = _mean(list(party.values()))
    return {"round": number, "pooled": pooled, "mean": mean, "party": party, "counts": sums}


def _summed(parts: Sequence[Counts]) -> Counts:
    return {name: np.sum([part[name] for part in parts], axis=0).tolist() for name in parts[0]}


def _mean(scores: Sequence[Scores]) -> Scores:
    splits = sorted({split for s in scores for split in s})
    mean: Scores = {}
    for split in splits:
        found = [s[split] for s in scores if split in s]
        mean[split] = {
            name: fmean(f[name] for f in found if name in f)  # parties with the entity type
            for name in sorted(set().union(*found))
        }
    return mean


def spent(
    recorders: Sequence[EventLog], total: float, before: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return seconds per phase, and the fraction of time that protection took.

    The first recorder is the coordinator's, and all ran in turn in one process.
    `before`: the document of earlier sessions.
    """
    coordinator, *parties = recorders
    earlier = before or {}
    phases = {r.party: _added(r.seconds, earlier.get("party", {}).get(r.party)) for r in parties}
    own = _added({"run": total} | coordinator.seconds, earlier.get("coordinator"))
    protecting = sum(found.get(phase, 0.0) for found in phases.values() for phase in PROTECTING)
    protecting += sum(own.get(phase, 0.0) for phase in ("add", "answer"))
    rounds = own["run"] - sum(found.get("load model", 0.0) for found in phases.values())
    return {
        "total": total + earlier.get("total", 0.0),
        "party": phases,
        "coordinator": own,
        "privacy_share": protecting / max(rounds, 1e-9),
    }


def crossed(
    recorders: Sequence[EventLog], before: Mapping[str, Any] | None = None
) -> dict[str, dict[str, int]]:
    """Return sent and received bytes of each party, including earlier sessions."""
    now = {r.party: {"up": r.bytes_up, "down": r.bytes_down} for r in recorders}
    return {name: _added(found, (before or {}).get(name)) for name, found in now.items()}


def _added(now: Mapping[str, N], before: Mapping[str, N] | None) -> dict[str, N]:
    sums = dict(before or {})
    for name, value in now.items():
        sums[name] = sums[name] + value if name in sums else value
    return sums


@cache
def versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Return the versions of packages, which are read from their files once."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def machine() -> Mapping[str, Any]:
    """Describe the machine, for figures that depend on it."""
    import torch

    return {
        "system": platform.system(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
