"""`python -m benchmarks.peers.page`: write the tables of the measured systems into their page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.peers import tables
from benchmarks.peers.ways import WITHOUT_MASKS
from benchmarks.report import Grid, fill

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "peers"
PAGE = RESULTS.with_suffix(".md")
GROWN = ("networked", "values-1M", "values-10M", "values-100M")


def write(page: str) -> str:
    """Replace every table of the page."""
    return fill(page, lambda name: _grid(*name.split()))


def _grid(kind: str, *files: str) -> Grid:
    if kind == "growth":
        return tables.growth([_read(name) for name in GROWN])
    rows = _read(files[0])["rows"]
    if kind == "ratios":
        return tables.ratios(rows, *files[1:])
    if kind == "simulated":
        return Grid.of("", rows.values(), tables.SIMULATED)
    if kind in ("broken", "learning"):
        ran = {name: row for name, row in rows.items() if "error" not in row}
        peers = {name: row for name, row in ran.items() if name != WITHOUT_MASKS}
        return tables.broken(peers) if kind == "broken" else tables.learning(ran)
    return Grid.of("", rows.values(), tables.NETWORKED)


def _read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


if __name__ == "__main__":
    PAGE.write_text(write(PAGE.read_text()))
