"""`python -m benchmarks.peers.page`: write the tables of docs/peers.md from the measurements.

A table is the text between the comments `<!-- table NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from benchmarks.peers import tables
from benchmarks.peers.ways import WITHOUT_MASKS
from benchmarks.report import Grid

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "benchmarks" / "results" / "peers", ROOT / "docs" / "benchmarks.md"
GROWN = ("networked", "values-1M", "values-10M", "values-100M")
BLOCK = re.compile(r"<!-- table (?P<name>[\w -]+) -->\n.*?<!-- end -->", re.DOTALL)


def write(page: str) -> str:
    """Replace every table of a page."""
    return BLOCK.sub(lambda found: _block(found["name"]), page)


def _block(name: str) -> str:
    grid = _grid(*name.split())
    return "\n".join([f"<!-- table {name} -->", *grid.markdown(), "<!-- end -->"])


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
