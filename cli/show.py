"""What commands show: progress of a run as it happens, and tables of results.

Progress and warnings go to stderr, results to stdout, so that `--json` and pipes stay clean.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import click
from rich.console import Console
from rich.panel import Panel

from secure_fl.display.figures import LOCAL
from secure_fl.display.figures import duration as duration
from secure_fl.display.figures import metric_of as metric_of
from secure_fl.display.figures import number as number
from secure_fl.display.figures import size as size
from secure_fl.display.figures import traffic as traffic
from secure_fl.display.grid import TOGETHER, Grid

WIDTH = 120  # of what goes to a file or a pipe
UNPROTECTED = (
    "This run is UNPROTECTED (protection.mode = none): the coordinator sees every hospital's "
    "updates in clear, and records can be rebuilt from them.\nOnly for data that may be public."
)
POOLED = (
    "This run puts ALL RECORDS OF ALL HOSPITALS IN ONE PLACE. It is a yardstick for records that "
    "already lie on one machine; nothing is protected."
)
ENTITY = "f1/"  # what the name of an entity type's F1 begins with
# As the registry has it, which would load torch for a table of runs.
WITHOUT_SUMS: Mapping[str, str] = MappingProxyType({"local": "-", "centralized": "POOLED"})


def out() -> Console:
    """Where results go."""
    return _console(sys.stdout.isatty())


def err(quiet: bool = False) -> Console:
    """Where progress and warnings go."""
    return _console(sys.stderr.isatty(), stderr=True, quiet=quiet)


def _console(terminal: bool, **options: Any) -> Console:
    # File names and records may hold [brackets] and :colons:; nothing of them is markup.
    width = None if terminal or "COLUMNS" in os.environ else WIDTH
    return Console(width=width, markup=False, emoji=False, highlight=False, **options)


def print_json(document: Any) -> None:
    """Print a document on stdout, and nothing else."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, default=str))


def protection(algorithm: str, mode: str) -> str:
    """Say in a word what protects a run's sums; some algorithms form none."""
    return WITHOUT_SUMS.get(algorithm, "NONE" if mode == "none" else mode)


def noise_line(document: Mapping[str, Any]) -> str | None:
    """Say what noise on predictions cost and left over; `None` where a run had none."""
    noise = document.get("noise")
    if not noise:
        return None
    if noise["epsilon"] is None:
        return "noise on predictions: no prediction was released"
    kept = "" if noise["durable"] else ", in no durable ledger"
    weak = ", DROWNED IN IT" if noise["drowned"] else ""
    return (
        f"noise on predictions: ε = {noise['epsilon']:.3f} of {noise['budget']:g} per "
        f"{noise['unit']} at δ = {noise['delta']:g} ({noise['epsilon_of_this_run']:.3f} by this "
        f"run, {noise['releases']} sums{kept}); std {noise['std_all_present']:.2f} on a signal of "
        f"{noise['signal']:.2f}{weak}"
    )


def warn_unprotected(console: Console, mode: str, algorithm: str) -> None:
    """Say loudly that nothing is protected; a run that adds nothing has nothing to protect."""
    text = {"POOLED": POOLED, "NONE": UNPROTECTED}.get(protection(algorithm, mode))
    if text:
        console.print(Panel(text, title="warning", style="bold red", width=76))


def grid(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Grid:
    """Lay out a table: names to the left, figures to the right; the first column names the row."""
    return Grid(title, columns, rows)


def result_table(document: Mapping[str, Any], title: str = "") -> Grid:
    """Lay out a result: per hospital and mean, last and best round, traffic and seconds."""
    metric = document["main_metric"]
    best = document.get("metrics", {}).get("best", {}).get("round", "-")
    columns = [
        "hospital",
        f"dev {metric}",
        f"test {metric}",
        f"test, best round ({best})",
        "sent",
        "received",
        "training",
    ]
    rows = [_row(document, party, party) for party in document["parties"]]
    last = document.get("metrics", {}).get("last", {})
    every = TOGETHER if last.get("pooled") else "mean"
    if any(split.startswith(LOCAL) for split in last.get("mean", {})):
        every = "host's model"
    named = {split.rpartition("/")[0] for split in last.get("pooled", {})} - {"", LOCAL[:-1]}
    beside = [_row(document, f"{every}, {name}", "", f"{name}/") for name in sorted(named)]
    return grid(title, columns, [_row(document, every, ""), *beside, *rows])


def entity_table(document: Mapping[str, Any], which: str = "last") -> Grid | None:
    """Lay out the test F1 of each entity type at each hospital; `None` where there are none."""
    metrics = document.get("metrics", {}).get(which, {})
    pooled, mean = (metrics.get(kind, {}).get("test", {}) for kind in ("pooled", "mean"))
    by_type = any(name.startswith(ENTITY) for name in pooled)  # else label sets differ
    first = {TOGETHER: pooled} if by_type else {"mean": mean}
    own = {name: splits.get("test", {}) for name, splits in metrics.get("party", {}).items()}
    scores = first | own
    types = sorted({name for row in first.values() for name in row if name.startswith(ENTITY)})
    rows = [[party, *(number(f1.get(name)) for name in types)] for party, f1 in scores.items()]
    columns = ["hospital", *(name.removeprefix(ENTITY) for name in types)]
    return grid("test F1 of each entity type", columns, rows) if types else None


def _row(document: Mapping[str, Any], label: str, party: str, model: str = "") -> list[str]:
    up, down = traffic(document, party)
    phases = document.get("seconds", {}).get("party", {})
    trained = [p.get("train", 0.0) for name, p in phases.items() if not party or name == party]
    count = 1 if party else max(len(phases), 1)
    return [
        label,
        number(metric_of(document, "last", f"{model}dev", party)),
        number(metric_of(document, "last", f"{model}test", party)),
        number(metric_of(document, "best", f"{model}test", party)),
        size(up / count),
        size(down / count),
        duration(sum(trained) / count),
    ]
