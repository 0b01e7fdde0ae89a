"""The tables that `benchmarks papers` fills: one file for each paper, and nothing but data.

A table is a list of cells. To add one, write a file with a `TABLE`, name it in `TABLES`, and add
the name to the command's choices.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.evidence.tables import adapters, demo, fedid, fedkd, inclusivefl, whole
from benchmarks.evidence.tables.base import Table

__all__ = ["TABLES", "Table"]

TABLES: Mapping[str, Table] = {
    table.name: table
    for table in (
        demo.TABLE,
        fedid.TABLE,
        fedkd.TABLE,
        inclusivefl.TABLE,
        adapters.TABLE,
        whole.TABLE,
    )
}
