"""The tables that `benchmarks papers` fills, as data.

To add a table, write a module with a `TABLE` and add its name here. Each is imported when it is
asked for: all import torch, which a help text does not need.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.evidence.tables.base import Table

PAPERS = ("fedid", "fedkd", "inclusivefl", "whole", "adapters", "dp")  # with a page of results
NAMES = (*PAPERS, "shared", "tiers", "personal", "optimisers")


def table_of(name: str) -> Table:
    """Import the table of a name."""
    found: Table = import_module(f"{__name__}.{name}").TABLE
    return found
