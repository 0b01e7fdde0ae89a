"""The tables that `benchmarks papers` fills, as data.

To add a table, write a file with a `TABLE`, list it in `TABLES`, and add its name to the command's
choices.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.evidence.tables import (
    adapters,
    dp,
    fedid,
    fedkd,
    inclusivefl,
    optimisers,
    personal,
    shared,
    tiers,
    whole,
)
from benchmarks.evidence.tables.base import Table

__all__ = ["TABLES", "Table"]

TABLES: Mapping[str, Table] = {
    module.TABLE.name: module.TABLE
    for module in (
        fedid,
        fedkd,
        inclusivefl,
        adapters,
        whole,
        shared,
        tiers,
        personal,
        optimisers,
        dp,
    )
}
